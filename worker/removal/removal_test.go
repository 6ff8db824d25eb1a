package removal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// scratch returns a directory in memory, because the tests make many changes, which would take long on a disk.
func scratch(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "removal-")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() {
		if err := Tree(context.Background(), dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// deep makes a tree of nested directories, and returns its top.
func deep(tb testing.TB, in string, levels int) string {
	tb.Helper()
	top := filepath.Join(in, "top")
	if err := os.Mkdir(top, 0o700); err != nil {
		tb.Fatal(err)
	}
	at, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	for range levels {
		below := -1
		err := errors.Join(unix.Mkdirat(at, "d", 0o700), unix.Symlinkat("/", at, "link"))
		if err == nil {
			below, err = unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(at)
		if at = below; err != nil {
			tb.Fatal(err)
		}
	}
	unix.Close(at)
	return top
}

// lowLimit lets the process open only a few more descriptors than it has now.
func lowLimit(t *testing.T, more int) {
	t.Helper()
	highest := 0
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range open {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			highest = max(highest, n)
		}
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: uint64(highest + 1 + more), Max: before.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
}

// os.RemoveAll would need an open descriptor for each level of the tree. The test is not parallel, because it lowers
// the limit of the whole process.
func TestRemovesADeepTreeWithFewDescriptors(t *testing.T) {
	top := deep(t, scratch(t), 5_000)
	lowLimit(t, 4)
	if err := Tree(context.Background(), top); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree still exists: %v", err)
	}
}

func TestRemovesLinksWithoutFollowingThem(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	kept := filepath.Join(dir, "kept")
	for _, d := range []string{kept, filepath.Join(dir, "top/a/b")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(kept, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"top/link", "top/a/link", "top/a/b/link", "alone"} {
		if err := os.Symlink(kept, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"top", "alone", "nothing", "nothing/below"} {
		if err := Tree(context.Background(), filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "kept" {
		t.Errorf("the removal left %v (error %v), want only the directory kept", left, err)
	}
	if _, err := os.Stat(filepath.Join(kept, "file")); err != nil {
		t.Errorf("the target of a link was removed: %v", err)
	}
}

func TestRemovesAWideTree(t *testing.T) {
	t.Parallel()
	top := filepath.Join(scratch(t), "top")
	for i := range 3 {
		for j := range batch + 10 {
			if err := os.MkdirAll(filepath.Join(top, fmt.Sprint(i), fmt.Sprint(j), "x"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := Tree(context.Background(), top); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree still exists: %v", err)
	}
}

// A file system that is mounted in a tree does not belong to the sandbox.
func TestLeavesMountsInATree(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
	t.Parallel()
	dir := scratch(t)
	kept, on := filepath.Join(dir, "kept"), filepath.Join(dir, "top/a/mounted")
	for _, d := range []string{kept, on} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(kept, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(kept, on, "", unix.MS_BIND, ""); err != nil {
		t.Skip(err)
	}
	defer unix.Unmount(on, unix.MNT_DETACH)
	err := Tree(context.Background(), filepath.Join(dir, "top"))
	if err == nil {
		t.Error("a tree with a mount in it was removed without an error")
	}
	if _, err := os.Stat(filepath.Join(kept, "file")); err != nil {
		t.Errorf("a file in the mounted directory was removed: %v", err)
	}
	if err := unix.Unmount(on, unix.MNT_DETACH); err != nil {
		// The directory with the mount may have been moved up to the top.
		t.Log(err)
	}
}

func TestErrorsAreShort(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may make a file immutable")
	}
	t.Parallel()
	dir := scratch(t)
	name := strings.Repeat("n", 255)
	if err := os.MkdirAll(filepath.Join(dir, "top/a", name), 0o700); err != nil {
		t.Fatal(err)
	}
	busy := filepath.Join(dir, "top/a", name)
	if err := unix.Mount("none", busy, "tmpfs", 0, ""); err != nil {
		t.Skip(err)
	}
	defer unix.Unmount(busy, unix.MNT_DETACH)
	err := Tree(context.Background(), filepath.Join(dir, "top"))
	if err == nil || len(err.Error()) > 200 {
		t.Errorf("the error is %v, want an error of at most 200 bytes", err)
	}
}

func TestASecondCallContinuesAnInterruptedRemoval(t *testing.T) {
	t.Parallel()
	top := deep(t, scratch(t), 50)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Tree(ctx, top); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v, want %v", err, context.Canceled)
	}
	if err := Tree(context.Background(), top); err != nil {
		t.Fatal(err)
	}
}
