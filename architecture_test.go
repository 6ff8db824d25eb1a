package boxfleet

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/boxfleet/boxfleet"

// forbidden lists imports, direct or indirect, that a package must not have, and why. A name that ends in "/..." stands
// for that package and all packages below it.
var forbidden = []struct{ from, to, why string }{
	{"protocol", module + "/...", "protocol is the shared vocabulary and depends on nothing here"},
	{"protocol", "net", "protocol is pure: no I/O"},
	{"protocol", "log/slog", "protocol is pure: no logger"},
	{"spec", module + "/jetstream/...", "spec describes sandboxes; storage is elsewhere"},
	{"spec", module + "/sdk", "spec only parses text; uploads and requests are elsewhere"},
	{"spec", "net/http", "spec is pure: no I/O"},
	{"rights", module + "/jetstream/...", "rights are a table over subjects; nothing is connected"},
	{"rights", "github.com/nats-io/...", "rights are a table over subjects; auth and jetstream know NATS"},
	{"rights", "net", "rights are pure: no I/O"},
	{"doctor", "net", "findings follow from facts; cmd/boxfleet gathers the facts"},
	{"doctor", module + "/jetstream/...", "findings follow from facts; nothing is connected"},
	{"doctor", module + "/sdk", "findings follow from facts; cmd/boxfleet asks the fleet"},
	{"auth", module + "/jetstream/...", "auth signs and writes files; it sends accounts to servers through an interface"},
	{"auth", "github.com/nats-io/nats.go/...", "only jetstream knows the NATS client"},
	{"coordinator", module + "/auth", "credentials are made for roles, not by them"},
	{"worker", module + "/auth", "credentials are made for roles, not by them"},
	{"sdk", module + "/auth", "callers do not link the keys of an operator"},
	{"jetstream", module + "/coordinator", "jetstream stores; decisions are elsewhere"},
	{"jetstream", module + "/worker/...", "jetstream stores; work on hosts is elsewhere"},
	{"jetstream", module + "/sdk", "jetstream is below the SDK"},
	{"jetstream", "github.com/nats-io/nats-server/...",
		"only jetstream/embedded links the server, so that the SDK does not"},
	{"coordinator", module + "/worker/...", "siblings meet in the log, never in imports"},
	{"coordinator", module + "/sdk", "siblings meet in the log, never in imports"},
	{"coordinator", "github.com/docker/docker/...", "only worker/docker knows the Engine"},
	{"coordinator", "github.com/nats-io/nats-server/...",
		"a coordinator connects to NATS; cmd decides whether it is embedded"},
	{"worker", module + "/coordinator", "siblings meet in the log, never in imports"},
	{"worker", module + "/sdk", "siblings meet in the log, never in imports"},
	{"worker", "github.com/nats-io/nats-server/...", "a worker connects to NATS; cmd decides whether it is embedded"},
	{"worker", module + "/spec", "a worker gets specs from the log, already parsed"},
	{"worker/decide", "net", "decisions are pure: no I/O"},
	{"worker/decide", "log/slog", "decisions are pure: no logger"},
	{"worker/decide", module + "/jetstream/...", "decisions take the state as a value; the journal calls them"},
	{"worker/decide", module + "/worker/docker", "decisions are pure: they get the state of the engine as a value"},
	{"worker/images", module + "/worker", "the parts of the worker do not know the worker"},
	{"worker/images", module + "/jetstream/...", "images come through small interfaces; only the worker knows the log"},
	{"worker/images", module + "/worker/network", "the parts of the worker do not know each other"},
	{"worker/watermark", module + "/worker/...", "only the kernel is asked how full the host is"},
	{"worker/network", module + "/worker/images", "the parts of the worker do not know each other"},
	{"worker/network", module + "/worker", "the parts of the worker do not know the worker"},
	{"worker/network", module + "/jetstream/...", "networks are made from specs; only the worker reads the log"},
	{"worker/firewall", "github.com/docker/docker/...", "only worker/docker knows the Engine"},
	{"treetar", module + "/worker/...", "treetar rewrites one stream into another; it knows no host and no engine"},
	{"treetar", module + "/jetstream/...", "treetar rewrites one stream into another; it does not store them"},
	{"treetar", "net", "treetar is pure: no I/O except its two streams"},
	{"worker/disk", module + "/worker", "nobody imports worker"},
	{"worker/disk", module + "/worker/docker",
		"the disk watch needs no engine: it also works while the engine hangs on a full disk"},
	{"worker/disk", module + "/jetstream/...",
		"the disk watch needs no log: NATS may be down because of the same full disk"},
	{"worker/output", module + "/worker", "nobody imports worker"},
	{"worker/output", module + "/worker/docker", "output is published from files; the engine has no part in it"},
	{"worker/treecopy", module + "/worker/...",
		"a copy goes from a reader to a writer; the engine and the disk watch are small interfaces"},
	{"worker/treecopy", module + "/jetstream/...",
		"a copy goes from a reader to a writer; its caller opens the stored upload"},
	{"worker/hostdir", module + "/worker", "nobody imports worker"},
	{"worker/hostdir", module + "/worker/hostfiles",
		"a sandbox's directory does not depend on what is mounted into the sandbox"},
	{"worker/hostdir", module + "/jetstream/...", "a directory describes its own content; the log does not"},
	{"worker/hostfiles", module + "/worker", "nobody imports worker"},
	{"worker/hostfiles", module + "/jetstream/...",
		"which files a sandbox may use depends on its spec and the host alone"},
	{"worker/abilities", module + "/worker", "nobody imports worker"},
	{"worker/abilities", module + "/jetstream/...", "what a host can do does not depend on the log"},
	{"worker/kernel", module + "/worker/...", "the kernel's limits are the same for every engine and every worker"},
	{"worker/kernel", module + "/jetstream/...", "the kernel's limits do not depend on the log"},
	{"sdk", module + "/coordinator", "siblings meet in the log, never in imports"},
	{"sdk", module + "/worker/...", "callers do not link the worker"},
	{"sdk", "github.com/docker/docker/...", "callers do not link the Docker client"},
	{"sdk", "github.com/nats-io/nats-server/...", "callers do not link the NATS server"},
	{"sdk", module + "/sdk/environment/...", "environments are built on the SDK, not the other way round"},
	{"sdk/environment", module + "/...", "anybody can implement the interface, so it depends on nothing here"},
	{"sdk/environment/shell", module + "/sdk", "a shell needs no fleet"},
	{"sdk/environment/conformance", module + "/sdk", "the table is the same for every environment"},
	{"sdk/environment/tools", module + "/sdk", "tools work on any environment"},
	{"sdk/environment/docker", module + "/sdk", "a container needs no fleet"},
	{"sdk/environment/ssh", module + "/sdk", "another machine needs no fleet"},
	{"sdk/environment/shell", "github.com/nats-io/...", "a shell needs no fleet"},
	{"cmd/boxfleet", module + "/sdk/environment/environmenttest", "what helps tests is imported by tests only"},
	{"sdk/environment/conformance", module + "/sdk/environment/environmenttest",
		"the command conformance links the table, and not the interpreter"},
	{"supervisor", "github.com/nats-io/...", "the supervisor is small and talks only to its worker"},
	{"supervisor", "github.com/docker/docker/...", "the supervisor is small and talks only to its worker"},
	{"cmd/boxfleet-supervisor", "net/http", "the supervisor is small"},
	{"cmd/boxfleet-supervisor", "golang.org/x/crypto/ssh/...", "the supervisor is small"},
	{"cmd/boxfleet-supervisor", "github.com/klauspost/compress/...", "trees reach the helper as plain tar"},
	{"cmd/boxfleet-supervisor", "github.com/distribution/reference",
		"its regular expressions take a megabyte in each sandbox"},
	{"worker/sandbox", module + "/worker/registry",
		"a sandbox gets its images from an interface; worker/images knows registries"},
	{"worker/sandbox", module + "/worker/images", "a sandbox gets its images from an interface"},
	{"worker/sandbox", module + "/coordinator", "siblings meet in the log, never in imports"},
	{"worker/service", module + "/worker/sandbox",
		"a sandbox runs its services; a service uses its sandbox through interfaces"},
	{"worker/execs", module + "/worker/sandbox",
		"a sandbox runs its execs; an exec uses its sandbox through interfaces"},
	{"worker/execs", module + "/worker/network", "an exec uses the container that it finds"},
	{"worker/service", module + "/worker/execs", "a service reports to its sandbox's execs through an interface"},
	{"worker/service", module + "/worker/network", "the network belongs to the sandbox, not to a service"},
	{"worker/attach", module + "/jetstream/...", "a connection to a supervisor needs no log"},
	{"worker/attach", module + "/worker/decide", "a connection reports; it decides nothing"},
	{"worker/epoch", module + "/worker/docker",
		"an epoch is a number; its caller passes in the function that asks the engine"},
}

// onlyImporters lists technologies that exactly one package imports directly.
var onlyImporters = []struct{ technology, only, why string }{
	{"github.com/nats-io/nats.go/...", "jetstream", "one package wraps each technology"},
	{"github.com/nats-io/nats-server/...", "jetstream/embedded", "one package wraps each technology"},
	{"github.com/docker/docker/...", "worker/docker", "one package wraps each technology"},
	{"github.com/google/nftables/...", "worker/firewall", "one package wraps each technology"},
	{"mvdan.cc/sh/v3/...", "sdk/environment/environmenttest", "one package wraps each technology"},
	{"github.com/spf13/viper", "cmd/boxfleet", "configuration is read in cmd and nowhere else"},
}

func TestPackagesHaveNoForbiddenImports(t *testing.T) {
	for _, r := range forbidden {
		for _, dep := range list(t, "{{join .Deps \"\\n\"}}", module+"/"+r.from) {
			if matches(r.to, dep) && dep != module+"/"+r.from {
				t.Errorf("%s reaches %s: %s", r.from, dep, r.why)
			}
		}
	}
}

func TestOnePackageWrapsEachTechnology(t *testing.T) {
	for _, line := range list(t, "{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}\n{{end}}", "./...") {
		from, imported, ok := strings.Cut(line, " ")
		if !ok || strings.HasPrefix(from, module+"/integration") {
			continue
		}
		for _, o := range onlyImporters {
			if matches(o.technology, imported) && from != module+"/"+o.only {
				t.Errorf("%s imports %s, which only %s may: %s", from, imported, o.only, o.why)
			}
		}
	}
}

func TestPackagesHaveAComment(t *testing.T) {
	for _, line := range list(t, "{{.ImportPath}}|{{.Doc}}", "./...") {
		if path, doc, _ := strings.Cut(line, "|"); doc == "" && path != module {
			t.Errorf("%s has no package comment", path)
		}
	}
}

func matches(pattern, path string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == prefix || strings.HasPrefix(path, prefix+"/")
	}
	return path == pattern
}

func list(t *testing.T, format, pattern string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", format, pattern).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pattern, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
