package diskuse

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestADeepTreeIsCounted(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	at, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	const levels = 300
	for range levels {
		if err := unix.Mkdirat(at, "directory-with-a-long-name", 0o700); err != nil {
			t.Fatal(err)
		}
		below, err := unix.Openat(at, "directory-with-a-long-name", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if at = below; err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	unix.Close(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(fd, 0, 0, 1<<20); err != nil {
		t.Skip(err)
	}
	unix.Close(fd)
	if err := os.Symlink("/usr", filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	use, err := Tree(context.Background(), top, time.Now().Add(-time.Minute))
	if err != nil || !use.Complete || use.Inodes != levels+3 || use.Bytes < 1<<20 || use.Recent != use.Bytes {
		t.Errorf("the tree has %+v with error %v, want %d inodes and 1 MiB", use, err, levels+3)
	}
	if old, err := Tree(context.Background(), top, time.Now().Add(time.Minute)); err != nil || old.Recent != 0 {
		t.Errorf("files that changed before the given time count as recent: %+v, error %v", old, err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if part, _ := Tree(ended, top, time.Now()); part.Complete {
		t.Errorf("an interrupted count is marked as complete: %+v", part)
	}
}

// The bytes are written to a deleted file, which is in no tree.
func TestWrittenBytesAreCountedByGroup(t *testing.T) {
	dir := t.TempDir()
	var system unix.Statfs_t
	if err := unix.Statfs(dir, &system); err != nil || system.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary directory is in memory, so the kernel counts no written bytes: set TMPDIR to a disk")
	}
	group := Group(os.Getpid())
	count := func() int64 { return Written(Processes(map[string]bool{group: true})[group]) }
	before := count()
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if wrote := count() - before; wrote < 1<<20 {
		t.Errorf("only %d bytes of 1 MiB were counted", wrote)
	}
}

// The file is allocated and then deleted, so it is in no tree, and nothing was written to it.
func TestDeletedFilesThatAreOpenOrMappedAreCounted(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 1<<20); err != nil {
		t.Skip(err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	count := func() Usage {
		return Deleted(context.Background(), []int{os.Getpid(), os.Getpid()}, stat.Dev, time.Now().Add(-time.Minute))
	}
	if use := count(); use.Bytes >= 1<<20 {
		t.Errorf("a file that is not deleted is counted: %+v", use)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if use := count(); !use.Complete || use.Bytes < 1<<20 || use.Bytes >= 2<<20 || use.Recent != use.Bytes ||
		use.Device != stat.Dev {
		t.Errorf("a deleted file that is open is counted as %+v, want 1 MiB", use)
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if os.Getuid() == 0 {
		if use := count(); use.Bytes < 1<<20 {
			t.Errorf("a deleted file that is mapped is counted as %+v, want 1 MiB", use)
		}
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
	if use := count(); use.Bytes >= 1<<20 {
		t.Errorf("a deleted file that no process has open is counted: %+v", use)
	}
}
