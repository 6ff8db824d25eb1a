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

// fullDisk returns a directory on a file system without free space, and how to free some.
func fullDisk(t *testing.T) (dir string, free func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
	dir = t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.MkdirAll(filepath.Join(dir, "sandboxes"), 0o700); err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk does not fill: %v", err)
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
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := d.Remove(context.Background()); err != nil {
		t.Errorf("the directory cannot be removed: %v", err)
	}
}

// A disk that was full for a while must not leave a half-written record behind.
func TestEarlierOutputIsRecordedOnceTheDiskHasRoomAgain(t *testing.T) {
	t.Parallel()
	dir, free := fullDisk(t)
	d := In(dir).Of(web, 1)
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		t.Skip(err) // not even a directory fits
	}
	if got, err := d.EarlierOutput([2]int64{1, 2}); err == nil {
		t.Fatalf("recorded %v on a full disk", got)
	}
	free()
	for _, now := range [][2]int64{{3, 4}, {5, 6}} {
		if got, err := d.EarlierOutput(now); err != nil || got != [2]int64{3, 4} {
			t.Errorf("with %v published: %v, %v, want the first one", now, got, err)
		}
	}
}

func TestTheRootListsOnlyDirectoriesOfSandboxes(t *testing.T) {
	t.Parallel()
	root := In(t.TempDir())
	if dirs, err := root.List(); err != nil || len(dirs) != 0 {
		t.Errorf("before the first sandbox: %v, %v", dirs, err)
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
		t.Errorf("listed %v, %v", dirs, err)
	}
	for k, want := range map[protocol.SandboxKey]bool{web: true, {Tenant: "other", ID: "web"}: false} {
		if has, err := root.Has(k); has != want || err != nil {
			t.Errorf("%v: %v, %v", k, has, err)
		}
	}
}

func TestAHalfMadeDirectoryIsCompletedWithOneKey(t *testing.T) {
	t.Parallel()
	d := In(t.TempDir()).Of(web, 1)
	if _, err := d.Secret(); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("without a directory: %v", err)
	}
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Path, "key"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret, err := d.Create()
	if err != nil || len(secret) != keyLength {
		t.Fatalf("%x, %v", secret, err)
	}
	again, err := d.Create()
	if err != nil || string(again) != string(secret) {
		t.Errorf("a second create changed the key: %v", err)
	}
}

func TestADirectoryIsFoundWhereItsContainerSays(t *testing.T) {
	t.Parallel()
	d := In("/var/lib/a").Of(web, 1)
	for path, want := range map[string]string{
		"/var/lib/b/sandboxes/default.web.1/": "/var/lib/b/sandboxes/default.web.1",
		"/var/lib/b/sandboxes/default.web.2":  d.Path,
		"default.web.1":                       d.Path,
		"":                                    d.Path,
	} {
		if got := d.At(path).Path; got != want {
			t.Errorf("at %q: %s, want %s", path, got, want)
		}
	}
	if got := d.Service("db").Sandbox(); got != d.Path || d.Sandbox() != d.Path {
		t.Errorf("the sandbox's own directory is %s, of its service %s", d.Sandbox(), got)
	}
}
