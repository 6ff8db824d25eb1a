package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// earlierReleases is the environment variable with the releases that the upgrade tests start from, as NAME=DIRECTORY
// with spaces in between. scripts/upgrade-from builds them.
const earlierReleases = "BOXFLEET_TEST_UPGRADE_FROM"

// withoutHosts are releases that store and read output under subjects without a host. Their clients do not find output
// that newer workers store before the end of an exec, and newer clients cannot read through their coordinators.
var withoutHosts = []string{"b8fc766"}

// A fleet is upgraded and goes back to the earlier release while it works. The NATS server, the engine and all programs
// are real; the earlier programs are built from the commit of their release. Each phase has another mixture of
// versions, and in each one clients create sandboxes, run execs, read output and delete sandboxes.
func TestAFleetIsUpgradedAndGoesBackUnderLoad(t *testing.T) {
	releases := strings.Fields(os.Getenv(earlierReleases))
	if len(releases) == 0 {
		t.Skipf("%s is not set: run make upgrade-test", earlierReleases)
	}
	now := buildPrograms(t)
	for _, release := range releases {
		name, dir, ok := strings.Cut(release, "=")
		if !ok {
			t.Fatalf("%s: %q is not NAME=DIRECTORY", earlierReleases, release)
		}
		t.Run(name, func(t *testing.T) { upgradeAndGoBack(t, name, dir, now) })
	}
}

// A fleet with credentials is upgraded and goes back under load, in the order of docs/operate.md: the new program tells
// the servers the rights of its version with auth push, and then the new coordinators start. The releases in
// withoutHosts have no credentials.
func TestAFleetWithCredentialsIsUpgradedAndGoesBackUnderLoad(t *testing.T) {
	now := ""
	for _, release := range strings.Fields(os.Getenv(earlierReleases)) {
		name, dir, ok := strings.Cut(release, "=")
		if !ok {
			t.Fatalf("%s: %q is not NAME=DIRECTORY", earlierReleases, release)
		}
		if slices.Contains(withoutHosts, name) {
			continue
		}
		if now == "" {
			now = buildPrograms(t)
		}
		t.Run(name, func(t *testing.T) { upgradeWithCredentials(t, dir, now) })
	}
	if now == "" {
		t.Skipf("%s has no release with credentials: run make upgrade-test", earlierReleases)
	}
}

func upgradeWithCredentials(t *testing.T, before, now string) {
	f := startReleases(t, before, now, true)
	f.startAll(before)
	f.start("upgraded")
	f.load()

	f.phase("the servers have the rights of the new release")
	f.push(now)
	f.works()
	f.phase("coordinators are new")
	f.roll(now, "c1", "c2")
	f.works()
	f.phase("a new worker beside old clients")
	f.roll(now, "w1")
	f.works()
	f.phase("clients are new")
	f.client.Store(&now)
	f.works()
	f.speaks("w1")
	f.ends("upgraded")
	f.folds()

	f.start("back")
	f.phase("coordinators are old again, and workers and clients are new")
	f.roll(before, "c1", "c2")
	f.works()
	f.phase("workers are old again")
	f.roll(before, "w1")
	f.works()
	f.phase("clients are old again")
	f.client.Store(&before)
	f.works()
	f.ends("back")
	f.phase("the old program still works with the authority")
	f.replaceCreds(before, "coordinator", "c2")
	f.push(before)
	f.works()
	f.endLoad()
	f.folds()
	f.nothingWasRefused()
}

// buildPrograms builds the present programs and the NATS server.
func buildPrograms(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for program, of := range map[string]string{
		"boxfleet":            "github.com/boxfleet/boxfleet/cmd/boxfleet",
		"boxfleet-supervisor": "github.com/boxfleet/boxfleet/cmd/boxfleet-supervisor",
		"nats-server":         "github.com/nats-io/nats-server/v2",
	} {
		// With the flags of make build, most of the work is done already.
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, program), of)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", of, err, out)
		}
	}
	return dir
}

func upgradeAndGoBack(t *testing.T, name, before, now string) {
	f := startReleases(t, before, now, false)
	f.limited = strings.Contains(strings.Join(withoutHosts, " "), name)
	f.startAll(before)
	f.checkMixedPairs()
	f.start("upgraded")
	f.load()

	f.phase("coordinators are new")
	f.roll(now, "c1", "c2")
	f.works()
	f.phase("clients are new")
	f.client.Store(&now)
	f.works()
	f.phase("workers are new")
	f.roll(now, "w1")
	f.works()
	f.speaks("w1")
	f.oldClientsWork()
	f.ends("upgraded")
	f.folds()

	f.start("back")
	f.phase("workers are old again")
	f.roll(before, "w1")
	f.works()
	f.phase("clients are old again")
	if f.limited { // the output of the exec was stored by the newer worker first
		f.ends("back")
	}
	f.client.Store(&before)
	f.works()
	f.phase("coordinators are old again")
	f.roll(before, "c1", "c2")
	f.works()
	if !f.limited {
		f.ends("back")
	}
	f.endLoad()
	f.folds()
}

// checkMixedPairs tries the mixtures that no step of an upgrade in the documented order has.
func (f *releases) checkMixedPairs() {
	f.t.Helper()
	f.phase("a new worker beside old coordinators and clients")
	f.roll(f.now, "w1")
	f.works()
	f.roll(f.before, "w1")
	f.phase("new clients beside old coordinators")
	old := f.client.Swap(&f.now)
	defer f.client.Store(old)
	if !f.limited {
		f.works()
		return
	}
	began := time.Now()
	out, err := f.try("run", "--image", demoImage, "true")
	if err == nil || !strings.Contains(out, "unsupported_version") {
		f.t.Errorf("%s: got %v: %s, want an error that names the version", f.step, err, out)
	}
	if took := time.Since(began); took > commandTime/2 {
		f.t.Errorf("%s: the error took %s", f.step, took)
	}
}

// oldClientsWork tries earlier clients in a fleet that is new otherwise.
func (f *releases) oldClientsWork() {
	f.t.Helper()
	f.phase("old clients in a new fleet")
	if f.limited { // the clients of the load would miss output
		f.endLoad()
		defer f.load()
	}
	current := f.client.Swap(&f.before)
	defer f.client.Store(current)
	if !f.limited {
		f.works()
		return
	}
	id := f.nextID()
	f.do("sandbox", "create", "--id", id, "--image", demoImage)
	if out := f.do("exec", id, "--", "echo", "short"); out != "short\n" {
		f.t.Errorf("%s: got %q", f.step, out)
	}
	f.do("sandbox", "delete", id)
}

// works does what clients do, once: create, run, read long output, delete.
func (f *releases) works() {
	f.t.Helper()
	if f.t.Failed() {
		f.t.FailNow()
	}
	if err := f.useOnce(100_000); err != nil {
		f.t.Errorf("%s: %v", f.step, err)
	}
}

// useOnce creates a sandbox, runs a command that prints so many bytes slowly, and deletes the sandbox.
func (f *releases) useOnce(size int) error {
	id := f.nextID()
	if out, err := f.try("sandbox", "create", "--id", id, "--image", demoImage); err != nil {
		return fmt.Errorf("create %s: %v: %s", id, err, out)
	}
	script := fmt.Sprintf(`for i in 1 2 3 4; do head -c %d /dev/zero | tr '\0' x; sleep 0.1; done`, size/4)
	out, err := f.try("exec", id, "--", "sh", "-c", script)
	if err != nil || len(out) != size || strings.Trim(out, "x") != "" {
		return fmt.Errorf("exec in %s: %v, %d bytes of %d: %.300s", id, err, len(out), size, strings.Trim(out, "x"))
	}
	if out, err := f.try("sandbox", "delete", id); err != nil {
		return fmt.Errorf("delete %s: %v: %s", id, err, out)
	}
	return nil
}

// TestNoUpgradeStartsFromThePresentCommit runs scripts/upgrade-from in a clone that has one commit alone.
func TestNoUpgradeStartsFromThePresentCommit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text, err := os.ReadFile("../scripts/upgrade-from")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"-c", "user.name=test", "-c", "user.email=test@example.com",
		"commit", "--quiet", "--allow-empty", "--message", "first"}} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	script := filepath.Join(dir, "scripts", "upgrade-from")
	if err := os.Mkdir(filepath.Dir(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, text, 0o700); err != nil {
		t.Fatal(err)
	}
	for commit, want := range map[string]string{"687b85d": "git fetch --unshallow", "HEAD": "is the present commit"} {
		var said strings.Builder
		cmd := exec.Command("bash", script, commit)
		cmd.Stderr = &said
		if releases, err := cmd.Output(); err == nil || len(releases) > 0 || !strings.Contains(said.String(), want) {
			t.Errorf("from %s: %v, printed %q and %q", commit, err, releases, &said)
		}
	}
}
