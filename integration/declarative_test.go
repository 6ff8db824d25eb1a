package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// commandLine runs the boxfleet program against a fleet.
type commandLine struct {
	t    *testing.T
	path string
	f    *fleet.Fleet
	dir  string
}

// run runs the program as a user and returns its exit code, its stdout and its stderr.
func (c *commandLine) run(stdin string, args ...string) (code int, stdout, stderr string) {
	c.t.Helper()
	return c.runWith(c.f.Flags(), stdin, args...)
}

// runWith does the same as run, but uses the given flags to reach the fleet.
func (c *commandLine) runWith(flags []string, stdin string, args ...string) (code int, stdout, stderr string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute) // ends a call that waits instead of failing
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, append(args, flags...)...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+c.dir, "XDG_DATA_HOME="+c.dir, "WHO=world", "CODE=7")
	cmd.Dir, cmd.Stdin = c.dir, strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestSandboxesAreCreatedFromFiles(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Coordinators: -1, Workers: -1})
	f.Coordinator("c1", fleet.Role{Defaults: spec.Defaults{
		"*":       {Labels: map[string]string{"fleet": "test"}, Grace: protocol.Duration(time.Second)},
		"default": {Env: map[string]string{"FROM": "tenant", "OVER": "tenant"}, Memory: 48 << 20},
	}})
	f.Connect()
	f.Worker("w1", fleet.Role{})
	c := &commandLine{t, buildCLI(t), f, t.TempDir()}
	writeFile(t, filepath.Join(c.dir, "specs", "tree", "a", "kept"), "kept", 0o644, time.Now())
	writeFile(t, filepath.Join(c.dir, "specs", "tree", "left"), "left", 0o644, time.Now())
	file := filepath.Join(c.dir, "specs", "web.yaml")
	writeFile(t, file, `
id: web
image: `+fleet.Image+`
env: {GREETING: "hello ${WHO}", OVER: file, PRICE: $$5, NONE: "${NOWHERE:-default}"}
labels: [team=build]
copies:
- {source: tree, target: /tree, exclude: [left]}
`, 0o644, time.Now())

	t.Run("create", func(t *testing.T) {
		code, stdout, stderr := c.run("", "sandbox", "create", "-f", "specs/web.yaml", "--env", "FLAG=1", "--memory",
			"64m", "-o", "json")
		var b protocol.Sandbox
		if err := json.Unmarshal([]byte(stdout), &b); code != 0 || err != nil || b.ID != "web" ||
			b.State != protocol.StateReady {
			t.Fatalf("%d, %s, %s", code, stdout, stderr)
		}
		if s := b.Spec; s.Memory != 64<<20 || s.Labels["team"] != "build" || s.Labels["fleet"] != "test" ||
			s.Grace != protocol.Duration(time.Second) || s.CPU != 1 {
			t.Errorf("read back: %+v", s)
		}
		got := mustPrint(t, f, f.Client.Sandbox("web"),
			"echo $GREETING $OVER $PRICE $NONE $FROM $FLAG; cd /tree; find . -type f")
		if want := "hello world file $5 default tenant 1\n./a/kept"; got != want {
			t.Errorf("in the sandbox: want %q, got %q", want, got)
		}
		if code, _, stderr = c.run("", "sandbox", "create", "-f", "specs/web.yaml"); code != 1 ||
			!strings.Contains(stderr, "already_exists") {
			t.Errorf("again: %d, %s", code, stderr)
		}
	})

	t.Run("errors name the mistake", func(t *testing.T) {
		for stdin, want := range map[string]string{
			"image: x\nmemroy: 1g":            "spec.memroy: stdin: line 2, column 1: is not a known field",
			"image: x\nenv: {A: $NOWHERE}":    "spec.env.A: stdin: line 2, column 10: NOWHERE is not set",
			"image: x\ntmpfs: [/a, /a]":       "spec.tmpfs[1].target: stdin: line 2, column 13: is the same target",
			"image: x\ncopies: [nowhere:/x]":  "not_found",
			"image: x\n---\nimage: x":         "more than one document",
			"image: x\ncpu: ${WHO}":           "must be a number",
			"image: x\nenv: {A: \"${CODE?\"}": "without a closing }",
		} {
			code, stdout, stderr := c.run(stdin, "sandbox", "create", "-f", "-")
			if code == 0 || !strings.Contains(stderr, want) || stdout != "" {
				t.Errorf("%q: want %q, got %d, %q, %q", stdin, want, code, stdout, stderr)
			}
		}
	})

	t.Run("render", func(t *testing.T) {
		code, stdout, stderr := c.run("", "spec", "render", "-f", "specs/web.yaml", "--pids", "100")
		for _, want := range []string{"id: web\n", "memory: 48MiB # tenant default\n",
			"pids: 100 # specs/web.yaml and flags\n", "cpu: 1 # built in\n",
			"env: # tenant default, specs/web.yaml and flags\n", "PRICE: $$5\n", "exclude: [left]\n", "OVER: file\n"} {
			if code != 0 || !strings.Contains(stdout, want) {
				t.Errorf("want %q, got %d, %s\n%s", want, code, stderr, stdout)
			}
		}
		if code, stdout, _ = c.run("", "spec", "render", "-f", file, "--offline", "-o", "json"); code != 0 ||
			strings.Contains(stdout, "tenant") ||
			!strings.Contains(stdout, `"origins":{`) || !strings.Contains(stdout,
			`"uploads":[{"index":0,"source":"`+filepath.Join(c.dir, "specs", "tree")) {
			t.Errorf("offline: %d, %s", code, stdout)
		}
		if list, err := f.Client.ListPage(f.Context(time.Minute)); err != nil || len(list.Items) != 1 {
			t.Errorf("rendering created a sandbox: %v", err)
		}
	})

	t.Run("validate", func(t *testing.T) {
		code, stdout, _ := c.run("image: x\n---\nid: b\nimage: x\n", "spec", "validate", "-f", "-", "-o", "json")
		if code != 0 || !strings.Contains(stdout, `"documents":2`) {
			t.Errorf("got %d, %s", code, stdout)
		}
		if code, _, stderr := c.run("image: x\n---\nimage: x\ncpu: -1\n", "spec", "validate", "-f", "-", "-o",
			"json"); code != 2 || !strings.Contains(stderr, `"field":"spec.cpu"`) ||
			!strings.Contains(stderr, "line 4, column 6") {
			t.Errorf("got %d, %s", code, stderr)
		}
	})

	t.Run("the SDK", func(t *testing.T) {
		text := "id: sdk\nimage: $IMAGE\nenv: {A: file, B: file}\ncopies: [" + filepath.Join(c.dir, "specs",
			"tree") + ":/tree]\n"
		env := map[string]string{"IMAGE": fleet.Image}
		s, err := f.Client.Create(f.Context(time.Minute), protocol.SandboxSpec{Env: map[string]string{"B": "call"}},
			sdk.WithYAML([]byte(text), env))
		if err != nil {
			t.Fatal(err)
		}
		if got := mustPrint(t, f, s, "echo $A $B; cat /tree/left"); s.ID() != "sdk" || got != "file call\nleft" {
			t.Errorf("%s: got %q", s.ID(), got)
		}
		_, err = f.Client.Create(f.Context(time.Minute), protocol.SandboxSpec{}, sdk.WithYAML([]byte(text), nil))
		if protocol.CodeOf(err) != protocol.InvalidArgument || protocol.AsError(err).Field != "spec.image" {
			t.Errorf("an unset variable: %v", err)
		}
	})
}

func TestApplyCreatesMissingSandboxesAndChangesNone(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	c := &commandLine{t, buildCLI(t), f, t.TempDir()}
	document := func(id, more string) string {
		return "---\nid: " + id + "\nimage: " + fleet.Image + "\nmemory: 32m\ngrace: 1s\n" + more
	}
	apply := func(text string) (int, string, string) { return c.run(text, "apply", "-f", "-") }
	events := func(id string) uint64 {
		s, err := f.Client.Get(f.Context(time.Minute), id)
		if err != nil {
			t.Fatal(err)
		}
		return s.Info().Sequence
	}

	code, stdout, stderr := apply(document("a", "") + document("b", "env: {A: 1}\n"))
	if code != 0 || stdout != "a created\nb created\n" {
		t.Fatalf("%d, %q, %s", code, stdout, stderr)
	}
	before := events("a")
	code, stdout, stderr = c.run(document("a", "")+document("c", "copies: [x:/x]\n"), "apply", "-f", "-", "-o", "json")
	if code == 0 || !strings.Contains(stderr, "not_found") || stdout != "" {
		t.Errorf("a missing copy source: %d, %q, %s", code, stdout, stderr)
	}
	writeFile(t, filepath.Join(c.dir, "x", "y"), "y", 0o644, time.Now())
	with := document("c", "copies: [x:/x]\n")
	for _, want := range []string{"created", "unchanged"} {
		code, stdout, stderr = c.run(document("a", "")+document("b", "env: {A: 1}\n")+with, "apply", "-f", "-", "-o",
			"json")
		var results []struct {
			ID, Result string
			Sandbox    protocol.Sandbox
		}
		if err := json.Unmarshal([]byte(stdout), &results); code != 0 || err != nil || len(results) != 3 ||
			results[0].Result != "unchanged" || results[2].ID != "c" ||
			results[2].Result != want || results[2].Sandbox.State != protocol.StateReady {
			t.Fatalf("%s: %d, %s, %s", want, code, stdout, stderr)
		}
	}

	// One of the sandboxes differs from the file. Nothing is created, and stderr names every difference.
	code, stdout, stderr = apply(document("a", "cpu: 2\nenv: {B: 1}\n") + document("b", "") + document("new", ""))
	for _, want := range []string{"already_exists", "sandbox a exists with a different env.B, cpu",
		"sandbox b exists with a different env.A", "nothing was changed"} {
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("want %q, got %d, %q, %s", want, code, stdout, stderr)
		}
	}
	if _, err := f.Client.Get(f.Context(time.Minute), "new"); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("a refused file still created a sandbox: %v", err)
	}
	if now := events("a"); now != before {
		t.Errorf("a sandbox that is unchanged has %d events, had %d", now, before)
	}

	// A deleted or failed sandbox does not count as existing.
	if err := f.Client.Sandbox("b").Delete(f.Context(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr = apply(document("b", "env: {A: 1}\n")); code != 1 ||
		!strings.Contains(stderr, "sandbox b is deleted") {
		t.Errorf("got %d, %s", code, stderr)
	}
	// One sandbox fails. The output still names the sandboxes that were created.
	code, stdout, stderr = apply(document("good",
		"") + "---\nid: bad\nimage: boxfleet/none:nowhere\ncreate_timeout: 20s\n")
	if code != 1 || stdout != "good created\nbad failed\n" || !strings.Contains(stderr, "sandbox bad: ") {
		t.Errorf("got %d, %q, %s", code, stdout, stderr)
	}
	for text, want := range map[string]string{
		"image: x":                            "document 1 has no name",
		document("a", "") + document("a", ""): "documents 1 and 2 have the same value: a",
		document("a.b", ""):                   "line 2, column 5",
		document("z", "") + document("y", "nonsense: 1"): "spec.nonsense: stdin: line 11, column 1",
		"": "no document",
	} {
		if code, stdout, stderr := apply(text); code != 2 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%q: want %q, got %d, %q, %s", text, want, code, stdout, stderr)
		}
	}
}
