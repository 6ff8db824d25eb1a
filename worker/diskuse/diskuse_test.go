package diskuse

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestCountsDeepTrees(t *testing.T) {
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
		t.Errorf("counted %+v, %v", use, err)
	}
	if old, err := Tree(context.Background(), top, time.Now().Add(time.Minute)); err != nil || old.Recent != 0 {
		t.Errorf("counts old files as recent: %+v, %v", old, err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if part, _ := Tree(ended, top, time.Now()); part.Complete {
		t.Errorf("an interrupted walk claims to be complete: %+v", part)
	}
}

// The bytes go to a deleted file, which is in no tree.
func TestCountsWrittenBytesByGroup(t *testing.T) {
	dir := t.TempDir()
	var system unix.Statfs_t
	if err := unix.Statfs(dir, &system); err != nil || system.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary directory is in memory, so nothing is written")
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
		t.Errorf("counted only %d of 1 MiB", wrote)
	}
}

// The file was only allocated and then deleted: it is in no tree, and was never written.
func TestCountsDeletedFilesThatAreOpenOrMapped(t *testing.T) {
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
		t.Errorf("counts a file that is not deleted: %+v", use)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if use := count(); !use.Complete || use.Bytes < 1<<20 || use.Bytes >= 2<<20 || use.Recent != use.Bytes || use.Device != stat.Dev {
		t.Errorf("open file: counted %+v", use)
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if os.Getuid() == 0 {
		if use := count(); use.Bytes < 1<<20 {
			t.Errorf("mapped file: counted %+v", use)
		}
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
	if use := count(); use.Bytes >= 1<<20 {
		t.Errorf("counts a file that nobody has open: %+v", use)
	}
}
