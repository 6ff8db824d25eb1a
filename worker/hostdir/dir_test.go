package hostdir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

var web = protocol.SandboxKey{Tenant: "default", ID: "web"}

// fullDisk returns a directory on a file system without free space, and a function that frees space.
func fullDisk(t *testing.T) (dir string, free func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
	dir = t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(filepath.Join(dir, "sandboxes"), 0o700); err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk failed with %v, want %v", err, unix.ENOSPC)
	}
	return dir, func() {
		if err := os.Remove(fill); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFullDiskIsResourceExhausted(t *testing.T) {
	t.Parallel()
	dir, _ := fullDisk(t)
	d := In(dir).Of(web, 1)
	_, err := d.Create()
	for what, err := range map[string]error{
		"create": err, "etc": d.WriteEtc("web"), "defaults": d.SaveDefaults(Defaults{Cwd: "/"}),
	} {
		e := protocol.AsError(err)
		if e == nil || e.Code != protocol.ResourceExhausted || e.Reason != protocol.ReasonDiskFull {
			t.Errorf("%s: %v, want resource_exhausted with reason disk_full", what, err)
		}
	}
	if err := d.Remove(context.Background()); err != nil {
		t.Errorf("the directory cannot be removed from the full disk: %v", err)
	}
}

// A write to a full disk must not leave an incomplete record.
func TestEarlierOutputIsRecordedOnceTheDiskHasRoomAgain(t *testing.T) {
	t.Parallel()
	dir, free := fullDisk(t)
	d := In(dir).Of(web, 1)
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		t.Skip(err) // the disk has no room even for a directory
	}
	if got, err := d.EarlierOutput([2]int64{1, 2}); err == nil {
		t.Fatalf("on a full disk, EarlierOutput returned %v and no error", got)
	}
	free()
	for _, now := range [][2]int64{{3, 4}, {5, 6}} {
		if got, err := d.EarlierOutput(now); err != nil || got != [2]int64{3, 4} {
			t.Errorf("with %v published: %v, error %v, want the value that was recorded first", now, got, err)
		}
	}
}

func TestTheRootListsOnlyDirectoriesOfSandboxes(t *testing.T) {
	t.Parallel()
	root := In(t.TempDir())
	if dirs, err := root.List(); err != nil || len(dirs) != 0 {
		t.Errorf("before the first sandbox: %v, error %v, want no directories", dirs, err)
	}
	d := root.Of(web, 7)
	if _, err := d.Create(); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"default.web", "default.web.x", "default..1", "a.b.c.1", "lost+found"} {
		if err := os.Mkdir(filepath.Join(root.path, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if dirs, err := root.List(); err != nil || len(dirs) != 1 || dirs[0] != d {
		t.Errorf("List returns %v, error %v, want only %v", dirs, err, d)
	}
	for k, want := range map[protocol.SandboxKey]bool{web: true, {Tenant: "other", ID: "web"}: false} {
		if has, err := root.Has(k); has != want || err != nil {
			t.Errorf("Has(%v) returns %v, error %v, want %v", k, has, err, want)
		}
	}
}

func TestAnIncompleteDirectoryIsCompletedAndKeepsItsKey(t *testing.T) {
	t.Parallel()
	d := In(t.TempDir()).Of(web, 1)
	if _, err := d.Secret(); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("without a directory, Secret failed with %v, want not_found", err)
	}
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Path, "key"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret, err := d.Create()
	if err != nil || len(secret) != keyLength {
		t.Fatalf("Create returned a key of %d bytes, error %v, want %d bytes", len(secret), err, keyLength)
	}
	again, err := d.Create()
	if err != nil || string(again) != string(secret) {
		t.Errorf("a second Create returned another key, error %v", err)
	}
}

func TestADirectoryIsAtThePathInItsContainersLabel(t *testing.T) {
	t.Parallel()
	d := In("/var/lib/a").Of(web, 1)
	for path, want := range map[string]string{
		"/var/lib/b/sandboxes/default.web.1/": "/var/lib/b/sandboxes/default.web.1",
		"/var/lib/b/sandboxes/default.web.2":  d.Path,
		"default.web.1":                       d.Path,
		"":                                    d.Path,
	} {
		if got := d.At(path).Path; got != want {
			t.Errorf("with the label %q, the path is %s, want %s", path, got, want)
		}
	}
	if got := d.Service("db").Sandbox(); got != d.Path || d.Sandbox() != d.Path {
		t.Errorf("Sandbox returns %s, and %s for a service's directory, want %s", d.Sandbox(), got, d.Path)
	}
}
