package worker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// diskReserve is room that the worker holds on its own disk, so that it can note why it stopped a sandbox, and
// remove it, when the disk is full: a file with the bytes, and empty files with the inodes. It is given away
// when there is no other room, and held again when there is.
type diskReserve struct {
	dir   string
	bytes func(diskRoom) int64
	held  bool

	looked time.Time
}

// reserveInodes is how many inodes are held.
const reserveInodes = 32

func newDiskReserve(dir string, bytes func(diskRoom) int64) *diskReserve {
	r := &diskReserve{dir: filepath.Join(dir, "reserve"), bytes: bytes}
	_, err := os.Stat(filepath.Join(r.dir, "held")) // the last that is made
	r.held = err == nil
	return r
}

// lookEvery is how often it is noted that a worker looks at the disk.
const lookEvery = 5 * time.Second

// look notes that the disk was looked at, in a time of the directory, which takes no room.
func (r *diskReserve) look(now time.Time) {
	if now.Sub(r.looked) >= lookEvery && os.Chtimes(r.dir, time.Time{}, now) == nil {
		r.looked = now
	}
}

// lookedAt is when a worker looked last, now where that is not known.
func (r *diskReserve) lookedAt() time.Time {
	if info, err := os.Stat(r.dir); err == nil {
		return info.ModTime()
	}
	return time.Now()
}

// hold makes the reserve. Where that does not go on, nothing is held.
func (r *diskReserve) hold(room diskRoom) error {
	if r.held {
		return nil
	}
	err := os.MkdirAll(r.dir, 0o700)
	for i := 0; i < reserveInodes && err == nil; i++ {
		err = os.WriteFile(filepath.Join(r.dir, fmt.Sprint("inode-", i)), nil, 0o600)
	}
	if err == nil {
		err = r.holdBytes(r.bytes(room))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(r.dir, "held"), nil, 0o600)
	}
	if err != nil {
		return errors.Join(err, r.release())
	}
	r.held = true
	return nil
}

func (r *diskReserve) holdBytes(n int64) error {
	f, err := os.OpenFile(filepath.Join(r.dir, "bytes"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, n)
	if errors.Is(err, unix.EOPNOTSUPP) { // nothing can be held there
		err = nil
	}
	return errors.Join(err, f.Close())
}

// release gives the reserve away.
func (r *diskReserve) release() error {
	r.held = false
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.Remove(filepath.Join(r.dir, e.Name())))
	}
	return errors.Join(errs...)
}
