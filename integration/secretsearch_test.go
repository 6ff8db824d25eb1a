package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/integration/tap"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// leaks searches for values in everything that NATS, the disks and the engine hold.
type leaks struct {
	*fleet.Fleet
	t      *testing.T
	host   *engines.Engine   // an engine of the test's own
	engine string            // its address
	wire   eventually.Buffer // every byte that NATS servers and clients exchange
	values map[string]string // by what they are
	errors []string          // texts of errors and of lists that clients saw
}

// forms returns the forms in which a value may be stored: itself, in hex, and in base64 at each offset in a text.
func forms(value string) [][]byte {
	of := hex.EncodeToString([]byte(value))
	all := [][]byte{[]byte(value), []byte(of), []byte(strings.ToUpper(of))}
	for offset := range 3 {
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := encoding.EncodeToString([]byte(strings.Repeat("x", offset) + value))
			all = append(all, []byte(text[4:len(text)-4])) // without the characters that depend on the neighbours
		}
	}
	return all
}

// search returns where values are found, as "place: what".
func (l *leaks) search() (found []string) {
	l.t.Helper()
	var size int
	in := func(place string, data []byte) {
		size += len(data)
		for what, value := range l.values {
			for _, form := range forms(value) {
				if bytes.Contains(data, form) && !slices.Contains(found, place+": "+what) {
					found = append(found, place+": "+what)
				}
			}
		}
	}
	in("wire", l.wire.Bytes())
	in("errors", []byte(strings.Join(l.errors, "\n")))
	in("fleet logs", l.logs())
	files := func(place, root string) {
		walked := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // it was removed meanwhile, or is a socket
			}
			if data, err := os.ReadFile(path); err == nil {
				in(place, data)
			}
			return nil
		})
		if walked != nil {
			l.t.Errorf("search %s: %v", root, walked)
		}
	}
	files("NATS store", l.StoreDir)
	files("fleet directory", l.Dir)
	root := l.host.Data()
	files("engine's disk", root)
	files("runtime state", filepath.Join(filepath.Dir(l.host.Socket), "exec"))
	in("engine's log", engines.Log(l.host))
	for _, id := range strings.Fields(docker(l.t, l.engine, "ps", "-aq", "--no-trunc")) {
		text, err := exec.Command("docker", "-H", l.engine, "inspect", id).Output()
		if err != nil {
			l.t.Errorf("inspect %s: %v", id, err)
		}
		in("inspect", text)
		files("container's configuration", filepath.Join(root, "containers", id))
		if logs, err := exec.Command("docker", "-H", l.engine, "logs", id).CombinedOutput(); err == nil {
			in("container's log", logs)
		}
		upper, err := exec.Command("docker", "-H", l.engine, "inspect", "-f", "{{.GraphDriver.Data.UpperDir}}", id).Output()
		if err == nil {
			files("container's layer", strings.TrimSpace(string(upper)))
		}
	}
	files("volumes", filepath.Join(root, "volumes"))
	if size < 1<<20 {
		l.t.Fatalf("only %d bytes were searched", size)
	}
	slices.Sort(found)
	return found
}

// logs returns the logs of all processes of the fleet.
func (l *leaks) logs() []byte {
	var all bytes.Buffer
	for _, role := range []string{"coordinator", "worker"} {
		for _, p := range l.Processes(role) {
			all.WriteString(p.Log())
		}
	}
	return all.Bytes()
}

func (l *leaks) value(what string) string {
	v := unguessable(what)
	l.values[what] = v
	return v
}

// see keeps what a client saw of an error or a list.
func (l *leaks) see(text any) {
	l.errors = append(l.errors, fmt.Sprintf("%+v", text), string(protocol.Encode(text)))
}

func TestNoSecretIsHeldInClear(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "secrets")
	e.Flags = []string{"--debug"} // its log then has the requests
	e.Restart()
	engines.LoadImage(t, e, fleet.Image)
	l := &leaks{Fleet: fleet.Start(t, fleet.Options{Secrets: true, Coordinators: -1, Workers: -1}), t: t,
		host: e, engine: e.Host, values: map[string]string{}}
	through := "nats://" + tap.Start(t, strings.TrimPrefix(l.URL(), "nats://"), &l.wire)
	l.Coordinator("c1", fleet.Role{NATS: through})
	l.Connect()
	l.Worker("w1", fleet.Role{NATS: through, Engine: e.Host, Profiles: []string{"hardened", "standard"}})
	ctx := l.Context(4 * time.Minute)
	client, err := sdk.Connect(ctx, l.Options(sdk.Options{URL: through}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	k := keeper{t, client}
	k.set("masked", l.value("masked"))
	k.set("key", "-----BEGIN-----\n"+l.value("line-of-a-key")+"\n-----END-----\n")
	for _, name := range []string{"file", "variable", "service", "exec", "removed"} {
		k.set(name, l.value(name))
	}
	k.remove("removed")
	s := l.uses(ctx, client, k)
	for info, err := range client.Secrets().List(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		l.see(info)
	}
	for _, b := range mustList(ctx, t, client) {
		l.see(b)
	}
	l.see(history(ctx, t, client, "s"))
	if found := l.search(); len(found) > 0 {
		t.Errorf("values are held in clear:\n  %s", strings.Join(found, "\n  "))
	}
	secret := maps.Clone(l.values)
	l.plant(ctx, s, k)
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	l.values = secret
	if found := l.search(); len(found) > 0 {
		t.Errorf("after the delete, values are held in clear:\n  %s", strings.Join(found, "\n  "))
	}
}

// uses lets a sandbox, a service and execs use all secrets, and print those that are masked.
func (l *leaks) uses(ctx context.Context, client *sdk.Client, k keeper) *sdk.Sandbox {
	l.t.Helper()
	masked := []protocol.SecretUse{{Name: "masked", Env: "MASKED", Mask: true}, {Name: "key", Mask: true}}
	prints := "echo $MASKED; cat $(ls -d /run/secrets/key $BOXFLEET_SECRETS/key 2>/dev/null); "
	spec := l.Spec()
	spec.Secrets = append(masked, protocol.SecretUse{Name: "file"}, protocol.SecretUse{Name: "variable", Env: "VARIABLE"})
	spec.SensitiveEnv = k.variables("SENSITIVE", l.value("sensitive"))
	spec.Command = []string{"sh", "-c", prints + "test -n $VARIABLE$SENSITIVE && exec sleep 1000"}
	spec.RequiredServices = protocol.Services{"db": {Image: spec.Image,
		Secrets: append(masked, protocol.SecretUse{Name: "service"},
			protocol.SecretUse{Name: "service", Env: "SERVICE"}),
		SensitiveEnv: k.variables("SENSITIVE", l.value("sensitive-service")),
		Command:      []string{"sh", "-c", prints + "exec sleep 1000"},
		PostStart:    []protocol.Hook{{Command: []string{"sh", "-c", "echo $MASKED; cat /run/secrets/key"}}},
		Healthcheck:  &protocol.Healthcheck{Test: []string{"CMD-SHELL", "echo $MASKED; test -s /run/secrets/service"}},
	}}
	s, err := client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		l.t.Fatal(err)
	}
	own := script(prints + "cat $BOXFLEET_SECRETS/exec | wc -c; seq 1 100000; echo $MASKED >&2; exit 7")
	own.Secrets = append(masked, protocol.SecretUse{Name: "exec"}, protocol.SecretUse{Name: "exec", Env: "EXEC"})
	own.SensitiveEnv = k.variables("SENSITIVE", l.value("sensitive-exec"))
	for _, own.Service = range []string{"", "db"} {
		r, err := s.Exec(ctx, own)
		if err != nil || r.ExitCode == nil || *r.ExitCode != 7 {
			l.t.Fatalf("an exec with secrets: %+v, %v", r, err)
		}
		l.see(r)
	}
	l.fails(ctx, s, k)
	// The engine knows of no exec with values: the supervisor starts all of them.
	for _, file := range []string{"", "/run/secrets/file"} {
		text := docker(l.t, l.engine, "exec", containerOf(l.Fleet, l.engine, "s"), "sh", "-c",
			"env; ls -l /run/secrets "+file)
		l.see(text)
	}
	if err := s.Stop(ctx); err != nil {
		l.t.Fatal(err)
	}
	if err := s.Resume(ctx); err != nil {
		l.t.Fatal(err)
	}
	return s
}

// fails lets execs with secrets fail in several ways, and keeps the errors.
func (l *leaks) fails(ctx context.Context, s *sdk.Sandbox, k keeper) {
	l.t.Helper()
	for what, change := range map[string]func(*protocol.ExecSpec){
		"an unknown program": func(x *protocol.ExecSpec) { x.Command = []string{"/none"} },
		"an unknown user":    func(x *protocol.ExecSpec) { x.User = "nobody-knows" },
		"an unknown cwd":     func(x *protocol.ExecSpec) { x.Cwd = "/none" },
		"a value that cannot be a variable": func(x *protocol.ExecSpec) {
			x.Secrets = append(x.Secrets, protocol.SecretUse{Name: "binary", Env: "BINARY"})
		},
		"a value that is too short for a mask": func(x *protocol.ExecSpec) {
			x.Secrets = append(x.Secrets, protocol.SecretUse{Name: "short", Mask: true})
		},
		"a file in place of a directory": func(x *protocol.ExecSpec) {
			x.Secrets = append(x.Secrets, protocol.SecretUse{Name: "exec", File: "exec/below"})
		},
	} {
		k.set("binary", "a\x00"+l.values["exec"])
		k.set("short", "ab")
		x := script("true")
		x.Secrets = []protocol.SecretUse{{Name: "exec"}, {Name: "exec", Env: "EXEC"}}
		change(&x)
		r, err := s.Exec(ctx, x)
		if err == nil && (r.ExitCode == nil || *r.ExitCode == 0) {
			l.t.Errorf("an exec with %s succeeds: %+v", what, r)
		}
		l.see(r)
		l.see(fmt.Sprint(err))
	}
}

// plant puts values into each place, so that the test shows that the search finds them.
func (l *leaks) plant(ctx context.Context, s *sdk.Sandbox, k keeper) {
	l.t.Helper()
	plain := l.value("planted")
	c := containerOf(l.Fleet, l.engine, "s")
	docker(l.t, l.engine, "exec", c, "sh", "-c", "echo "+hex.EncodeToString([]byte(plain))+" > /planted")
	if _, err := s.Exec(ctx,
		script("seq 1 100000; echo "+base64.StdEncoding.EncodeToString([]byte("a "+plain)))); err != nil {
		l.t.Fatal(err)
	}
	other := c + ".planted"
	l.t.Cleanup(func() {
		docker(l.t, l.engine, "rm", "--force", other)
		docker(l.t, l.engine, "volume", "rm", "--force", other)
	})
	docker(l.t, l.engine, "run", "--detach", "--name", other, "--env", "PLANTED="+plain, "--volume", other+":/volume",
		fleet.Image, "sh", "-c", "echo $PLANTED | tee /volume/file && exec sleep 1000")
	k.set(plain, "of no interest") // the coordinators log the name
	// The store of NATS and the logs are in the fleet's directory too, so this file has a value of its own.
	if err := os.WriteFile(filepath.Join(l.Dir, "planted"), []byte(l.value("planted-file")), 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.see(plain)
	want := []string{"fleet directory: planted-file"}
	for _, place := range []string{"NATS store", "container's configuration", "container's layer", "container's log",
		"engine's disk", "engine's log", "errors", "fleet logs", "inspect", "runtime state", "volumes", "wire"} {
		want = append(want, place+": planted")
	}
	l.Eventually(20*time.Second, "the planted values are found", func() error {
		found := l.search()
		for _, each := range want {
			if !slices.Contains(found, each) {
				return fmt.Errorf("%s is missing; found %q", each, found)
			}
		}
		return nil
	})
}

func mustList(ctx context.Context, t *testing.T, c *sdk.Client) (all []any) {
	t.Helper()
	for s, err := range c.List(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s.Info())
	}
	return all
}
