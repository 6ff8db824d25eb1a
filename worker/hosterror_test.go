package worker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// fullDisk is a directory on a file system that has no room left.
func fullDisk(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.MkdirAll(filepath.Join(dir, "sandboxes"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk does not fill: %v", err)
	}
	return dir
}

// That a worker's disk is full is no defect of Boxfleet.
func TestAFullDiskIsResourceExhausted(t *testing.T) {
	t.Parallel()
	w := &worker{dir: fullDisk(t)}
	d := w.directory(key{Tenant: "default", ID: "web"}, 1)
	_, err := d.make()
	for what, err := range map[string]error{"make": err, "save": d.saveDefaults(defaults{Cwd: "/"})} {
		if what == "save" && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if e := protocol.AsError(err); e.Code != protocol.ResourceExhausted || e.Reason != protocol.ReasonDiskFull {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := d.remove(context.Background()); err != nil {
		t.Errorf("what is there cannot be removed: %v", err)
	}
}
