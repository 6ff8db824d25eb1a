// Package diskuse measures how much disk space a sandbox uses, and how much it writes. The sandbox may be hostile: its
// directory trees may have any depth and width, and may change while they are read.
//
//	Tree     the blocks of the files in a directory; uses few descriptors, and follows no link
//	Deleted  the blocks of deleted files that processes still have open
//	Written  the bytes that processes have written to file systems, as the kernel counts them
//
// None of these measurements is enough alone. A deleted file is in no tree. Allocating space for a file writes no
// bytes. And if a parent does not wait for its child process, the kernel no longer counts the bytes that the child
// wrote.
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

// Usage is the disk space that a tree, or a set of deleted files, uses.
type Usage struct {
	Device   uint64 // the device of the tree's root
	Bytes    int64  // size of the allocated blocks
	Inodes   int64  // number of files and directories, including the root
	Recent   int64  // the part of Bytes that is in files changed since a given time
	Complete bool   // everything was counted; if false, the numbers are lower bounds
}

// maxPending limits how many names of unread directories a walk remembers.
const maxPending = 100_000

// batch is how many names of a directory are read at a time.
const batch = 1024

// Tree counts the files and directories in a directory tree, until ctx ends. It does not enter mounts. If directories
// are moved during the walk, the count is incomplete.
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

// walk reads a tree, and is at one of its directories at a time. It remembers the directories above only by their inode
// numbers, so a deep tree needs no more descriptors than a flat tree.
type walk struct {
	dir     *os.File
	above   []level
	below   []string // subdirectories that are still to be read
	pending int      // the number of unread directories on all levels
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

// enter moves the walk into a subdirectory and counts the entries there.
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

// leave moves the walk to the directory above. It returns false if that directory is not the one from which the walk
// came, because a directory was moved.
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

// read counts the entries of the walk's directory.
func (w *walk) read(ctx context.Context) {
	for ctx.Err() == nil {
		names, err := w.dir.Readdirnames(batch)
		for _, name := range names {
			var stat unix.Stat_t
			if unix.Fstatat(int(w.dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // the entry was removed meanwhile
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
