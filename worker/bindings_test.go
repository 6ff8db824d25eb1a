package worker

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestAMountThatWasExchangedIsSeen(t *testing.T) {
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
		return sameMount(root, binding{Target: target, Writable: writable}, f)
	}
	if err := same("root/m", "/m", true); err != nil {
		t.Error(err)
	}
	if same("other", "/m", true) == nil {
		t.Error("another directory passes")
	}
	if same("root/m", "/m", false) == nil {
		t.Error("what can be written passes for read-only")
	}
	// A link of the image is followed in the container, not on the host.
	if err := os.Symlink("/m", filepath.Join(dir, "root", "link")); err != nil {
		t.Fatal(err)
	}
	if err := same("root/m", "/link", true); err != nil {
		t.Error(err)
	}
}

func TestLinksOfMountsLeadNowhereButForAStart(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "allowed", "data")
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	policy, err := newMountPolicy([]string{filepath.Join(dir, "allowed")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{mounts: policy}
	d := directory{path: filepath.Join(dir, "sandbox")}
	leads := func() string {
		real, err := filepath.EvalSymlinks(d.link(0))
		if err != nil {
			t.Fatal(err)
		}
		return real
	}
	if err := d.saveBindings(bindingList{Bindings: []binding{{Field: "spec.mounts[0]", Source: source, Target: "/m", Dir: true}}}); err != nil {
		t.Fatal(err)
	}
	if got := leads(); got != d.link(0)+".empty" {
		t.Errorf("before the start it leads to %s", got)
	}
	s, err := w.openBindings(d, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.show(); err != nil || leads() != source {
		t.Errorf("for the start it leads to %s, %v", leads(), err)
	}
	if err := s.hide(); err != nil || leads() != d.link(0)+".empty" {
		t.Errorf("after the start it leads to %s, %v", leads(), err)
	}
	if _, err := os.Stat(d.unverified()); err != nil {
		t.Errorf("it counts as verified: %v", err)
	}
	// A worker that died in between left them shown; the next one hides them before it copies anything.
	if err := s.show(); err != nil {
		t.Fatal(err)
	}
	kept, err := (&sandbox{w: w}).keepBindings(t.Context(), nil, d, docker.Image{}, "", nil)
	if err != nil || len(kept.Bindings) != 1 || leads() != d.placeholder(0) {
		t.Errorf("at the next try it leads to %s, %+v, %v", leads(), kept, err)
	}
}

// What was there at the create, and is not for the moment: a resume is refused, and a sandbox that is
// brought back waits, unless it can do without.
func TestOnlyAnOptionalSourceMayBeMissing(t *testing.T) {
	dir := t.TempDir()
	home, data := filepath.Join(dir, "home"), filepath.Join(dir, "data")
	fill(t, home, map[string]string{".ssh/known_hosts": "host key", ".claude/x": "x", ".claude.json": "{}"})
	fill(t, data, map[string]string{"deep/f": "x"})
	policy, err := newMountPolicy([]string{data}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{mounts: policy, tools: boxOf(t, []string{"git", "claude"}, home, "")}
	for _, c := range []struct {
		what, remove string
		spec         protocol.SandboxSpec
		passes       bool
	}{
		{"an optional file", filepath.Join(home, ".ssh"), protocol.SandboxSpec{Tools: []string{"git"}}, true},
		{"a mount", filepath.Join(data, "deep"), protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: filepath.Join(data, "deep"), Target: "/m"}}}, false},
		{"a required file", filepath.Join(home, ".claude"), protocol.SandboxSpec{Tools: []string{"claude"}}, false},
	} {
		d := directory{path: filepath.Join(dir, "of "+c.what)}
		list, err := w.planBindings(&c.spec)
		if err != nil {
			t.Fatal(err)
		}
		ofTools, _, err := w.tools.plan(&c.spec, "/root", d)
		if err == nil {
			err = d.saveBindings(bindingList{Bindings: append(list, ofTools...)})
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(c.remove); err != nil {
			t.Fatal(err)
		}
		if _, err := w.openBindings(d, false); !sourceMissing(err) {
			t.Errorf("%s: a resume: %v", c.what, err)
		}
		s, err := w.openBindings(d, true)
		if c.passes != (err == nil) || err != nil && !sourceMissing(err) {
			t.Errorf("%s: a sandbox that is brought back: %v", c.what, err)
		}
		if err != nil {
			continue
		}
		if err := s.show(); err != nil {
			t.Error(err)
		}
		if real, err := filepath.EvalSymlinks(d.link(0)); err != nil || real != d.placeholder(0) {
			t.Errorf("%s: its link leads to %s, %v", c.what, real, err)
		}
		s.close()
	}
}
