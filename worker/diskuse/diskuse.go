// Package diskuse measures what a sandbox has on a disk and how much it writes, even if the sandbox is hostile: its
// trees may be deep and wide without end, and change while they are read.
//
//	Tree     the blocks of a directory's files, with a handful of descriptors, following no link
//	Deleted  the blocks of deleted files that processes still have open
//	Written  the bytes that processes have written to file systems, as the kernel counts them
//
// None of them is enough alone: a deleted file is in no tree, a file that is only allocated was never written, and the
// kernel no longer counts what an ended process wrote if its parent did not wait for it.
//
// The package imports nothing of this module.
package diskuse

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a tree has on its disk.
type Usage struct {
	Device   uint64 // of the tree's root
	Bytes    int64  // of allocated blocks
	Inodes   int64  // files and directories, including the root
	Recent   int64  // those of Bytes that are in files changed since the given time
	Complete bool   // everything was counted; otherwise the numbers are lower bounds
}

// maxPending limits how many names of unread directories are remembered.
const maxPending = 100_000

// batch is how many names are read at a time.
const batch = 1024

// Tree counts what is in a directory, until ctx ends. It does not enter mounts. If directories are moved during the
// walk, the count is incomplete.
func Tree(ctx context.Context, path string, since time.Time) (Usage, error) {
	top, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Usage{}, err
	}
	w := &walk{dir: top, since: since.Unix(), use: Usage{Complete: true}}
	defer func() { w.dir.Close() }()
	err = w.all(ctx)
	return w.use, err
}

// walk is positioned at one directory of a tree. It remembers the directories above only by inode, so a deep tree needs
// no more descriptors.
type walk struct {
	dir     *os.File
	above   []level
	below   []string // subdirectories that are still to be read
	pending int      // the number of such directories on all levels
	since   int64
	use     Usage
}

// level is a directory to which the walk returns.
type level struct {
	inode uint64
	below []string
}

func (w *walk) all(ctx context.Context) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(w.dir.Fd()), &stat); err != nil {
		return err
	}
	w.use.Device = stat.Dev
	w.count(&stat)
	w.read(ctx)
	for ctx.Err() == nil {
		if n := len(w.below); n > 0 {
			name := w.below[n-1]
			w.below, w.pending = w.below[:n-1], w.pending-1
			w.enter(ctx, name)
			continue
		}
		if len(w.above) == 0 {
			return nil
		}
		if !w.leave() {
			w.use.Complete = false
			return nil
		}
	}
	w.use.Complete = false
	return nil
}

// enter goes into a directory and counts its entries.
func (w *walk) enter(ctx context.Context, name string) {
	fd, err := unix.Openat(int(w.dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		w.use.Complete = w.use.Complete && errors.Is(err, unix.ENOENT)
		return
	}
	var here, stat unix.Stat_t
	if err := errors.Join(
		unix.Fstat(int(w.dir.Fd()), &here),
		unix.Fstat(fd, &stat),
	); err != nil ||
		stat.Dev != w.use.Device {
		unix.Close(fd)
		return
	}
	w.dir.Close()
	w.dir = os.NewFile(uintptr(fd), "directory")
	w.above, w.below = append(w.above, level{here.Ino, w.below}), nil
	w.read(ctx)
}

// leave returns to the directory above. It returns false if that is not the one the walk came from.
func (w *walk) leave() bool {
	up := w.above[len(w.above)-1]
	w.above = w.above[:len(w.above)-1]
	fd, err := unix.Openat(int(w.dir.Fd()), "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	w.dir.Close()
	w.dir, w.below = os.NewFile(uintptr(fd), "directory"), up.below
	var stat unix.Stat_t
	return unix.Fstat(fd, &stat) == nil && stat.Dev == w.use.Device && stat.Ino == up.inode
}

// read counts the entries of the directory.
func (w *walk) read(ctx context.Context) {
	for ctx.Err() == nil {
		names, err := w.dir.Readdirnames(batch)
		for _, name := range names {
			var stat unix.Stat_t
			if unix.Fstatat(int(w.dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // it was removed
			}
			w.count(&stat)
			if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			if w.pending == maxPending {
				w.use.Complete = false
				continue
			}
			w.below, w.pending = append(w.below, name), w.pending+1
		}
		if err != nil || len(names) == 0 {
			return
		}
	}
}

func (w *walk) count(stat *unix.Stat_t) {
	if stat.Dev != w.use.Device {
		return
	}
	w.use.add(stat, w.since)
}

func (u *Usage) add(stat *unix.Stat_t, since int64) {
	u.Inodes++
	u.Bytes += stat.Blocks * 512
	if stat.Ctim.Sec >= since {
		u.Recent += stat.Blocks * 512
	}
}
