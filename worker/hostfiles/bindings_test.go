package hostfiles

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostdir"
)

func TestAnExchangedMountIsDetected(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"root/m", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.Open(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	same := func(source, target string, writable bool) error {
		f, err := openPath(unix.AT_FDCWD, filepath.Join(dir, source), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return sameMount(root, Binding{Target: target, Writable: writable}, f)
	}
	if err := same("root/m", "/m", true); err != nil {
		t.Error(err)
	}
	if same("other", "/m", true) == nil {
		t.Error("another directory passes")
	}
	if same("root/m", "/m", false) == nil {
		t.Error("a writable mount passes for a read-only one")
	}
	// A link in the image is resolved inside the container, not on the host.
	if err := os.Symlink("/m", filepath.Join(dir, "root", "link")); err != nil {
		t.Fatal(err)
	}
	if err := same("root/m", "/link", true); err != nil {
		t.Error(err)
	}
}

func TestLinksLeadToTheSourcesOnlyDuringAStart(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "allowed", "data")
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	policy, err := NewPolicy([]string{filepath.Join(dir, "allowed")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files := Files{Mounts: policy}
	d := hostdir.Dir{Path: filepath.Join(dir, "sandbox")}
	leads := func() string {
		real, err := filepath.EvalSymlinks(link(d, 0))
		if err != nil {
			t.Fatal(err)
		}
		return real
	}
	chosen := Bindings{List: []Binding{{Field: "spec.mounts[0]", Source: source, Target: "/m", Dir: true}}}
	if err := chosen.save(d); err != nil {
		t.Fatal(err)
	}
	if got := leads(); got != placeholder(d, 0) {
		t.Errorf("before the start it leads to %s", got)
	}
	o, err := files.Open(d, false)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := o.Show(); err != nil || leads() != source {
		t.Errorf("for the start it leads to %s, %v", leads(), err)
	}
	if err := o.Hide(); err != nil || leads() != placeholder(d, 0) {
		t.Errorf("after the start it leads to %s, %v", leads(), err)
	}
	if !Unverified(d) {
		t.Error("it counts as verified")
	}
	// A worker that died during a start left the sources visible. The next one hides them before it copies anything.
	if err := o.Show(); err != nil {
		t.Fatal(err)
	}
	stored, err := files.Choose(nil, d, nil, nil)
	if err != nil || len(stored.List) != 1 || leads() != placeholder(d, 0) {
		t.Errorf("at the next try it leads to %s, %+v, %v", leads(), stored, err)
	}
}

// If a source is missing that existed at the create, a resume is refused. A sandbox that the worker restarts waits
// for it, unless it is optional.
func TestOnlyAnOptionalSourceMayBeMissing(t *testing.T) {
	dir := t.TempDir()
	home, data, deep := filepath.Join(dir, "home"), filepath.Join(dir, "data"), filepath.Join(dir, "data", "deep")
	fill(t, home, map[string]string{".ssh/known_hosts": "host key", ".claude/x": "x", ".claude.json": "{}"})
	fill(t, data, map[string]string{"deep/f": "x"})
	policy, err := NewPolicy([]string{data}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files := Files{Mounts: policy, Tools: boxOf(t, []string{"git", "claude"}, home, "")}
	for _, c := range []struct {
		what, remove string
		spec         protocol.SandboxSpec
		passes       bool
	}{
		{"an optional file", filepath.Join(home, ".ssh"), protocol.SandboxSpec{Tools: []string{"git"}}, true},
		{"a mount", deep, protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: deep, Target: "/m"}}}, false},
		{"a required file", filepath.Join(home, ".claude"), protocol.SandboxSpec{Tools: []string{"claude"}}, false},
	} {
		d := hostdir.Dir{Path: filepath.Join(dir, "of "+c.what)}
		list, err := files.Check(&c.spec)
		if err != nil {
			t.Fatal(err)
		}
		tools, err := files.Tools.plan(&c.spec, "/root", d)
		if err == nil {
			err = (Bindings{List: append(list, tools.List...)}).save(d)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(c.remove); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Open(d, false); !SourceMissing(err) {
			t.Errorf("%s: a resume: %v", c.what, err)
		}
		o, err := files.Open(d, true)
		if c.passes != (err == nil) || err != nil && !SourceMissing(err) {
			t.Errorf("%s: a sandbox that is restarted: %v", c.what, err)
		}
		if err != nil {
			continue
		}
		if err := o.Show(); err != nil {
			t.Error(err)
		}
		if real, err := filepath.EvalSymlinks(link(d, 0)); err != nil || real != placeholder(d, 0) {
			t.Errorf("%s: its link leads to %s, %v", c.what, real, err)
		}
		o.Close()
	}
}
