package worker

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
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
	s, err := w.openBindings(d)
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
}
