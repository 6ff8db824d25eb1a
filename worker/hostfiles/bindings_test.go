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
		t.Error("another directory than the source is accepted")
	}
	if same("root/m", "/m", false) == nil {
		t.Error("a writable mount is accepted instead of a read-only mount")
	}
	// A link in the image must be resolved inside the container, not on the host.
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
		t.Errorf("before the start, the link leads to %s, want the placeholder", got)
	}
	o, err := files.Open(d, false)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := o.Show(); err != nil || leads() != source {
		t.Errorf("during the start, the link leads to %s, error %v, want the source", leads(), err)
	}
	if err := o.Hide(); err != nil || leads() != placeholder(d, 0) {
		t.Errorf("after the start, the link leads to %s, error %v, want the placeholder", leads(), err)
	}
	if !Unverified(d) {
		t.Error("the mounts count as verified before Verify was called")
	}
	// If a worker dies during a start, the links lead to the sources. The next worker must hide the sources before it
	// copies files into the container.
	if err := o.Show(); err != nil {
		t.Fatal(err)
	}
	stored, err := files.Choose(nil, d, nil, nil)
	if err != nil || len(stored.List) != 1 || leads() != placeholder(d, 0) {
		t.Errorf("at the next create, the link leads to %s, the bindings are %+v, error %v", leads(), stored, err)
	}
}

// If a source existed during the create and is missing now, a resume is refused. The restart of a ready sandbox waits
// for the source, unless the source is optional.
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
			t.Errorf("%s is missing: a resume failed with %v, want that the source is missing", c.what, err)
		}
		o, err := files.Open(d, true)
		if c.passes != (err == nil) || err != nil && !SourceMissing(err) {
			t.Errorf("%s is missing: the restart of a ready sandbox: error %v, want success: %v", c.what, err, c.passes)
		}
		if err != nil {
			continue
		}
		if err := o.Show(); err != nil {
			t.Error(err)
		}
		if real, err := filepath.EvalSymlinks(link(d, 0)); err != nil || real != placeholder(d, 0) {
			t.Errorf("%s is missing: its link leads to %s, error %v, want the placeholder", c.what, real, err)
		}
		o.Close()
	}
}
