package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// reserve is space that the worker holds back on its own disk: one file that takes bytes, and empty files that take
// inodes. When the disk is full, the worker releases the reserve. It then has space to record why it stopped a sandbox,
// and to remove that sandbox. The worker takes the reserve again when the disk has enough free space.
type reserve struct {
	dir  string
	size func(room) int64 // returns the number of bytes that the reserve should hold
	held bool

	marked time.Time // when mark last set the directory's modification time
}

// reserveInodes is how many inodes the reserve holds.
const reserveInodes = 32

func newReserve(dir string, size func(room) int64) *reserve {
	r := &reserve{dir: filepath.Join(dir, "reserve"), size: size}
	_, err := os.Stat(filepath.Join(r.dir, "held")) // hold creates this file last
	r.held = err == nil
	return r
}

// markEvery is the interval at which a worker records that it watches the disk.
const markEvery = 5 * time.Second

// mark records that a worker watches the disk. It sets the modification time of the reserve's directory, which needs no
// space.
func (r *reserve) mark(now time.Time) {
	if now.Sub(r.marked) >= markEvery && os.Chtimes(r.dir, time.Time{}, now) == nil {
		r.marked = now
	}
}

// lastMark returns when a worker last watched the disk, or now if that is unknown.
func (r *reserve) lastMark() time.Time {
	if info, err := os.Stat(r.dir); err == nil {
		return info.ModTime()
	}
	return time.Now()
}

// hold takes the complete reserve. After a failure, hold releases the part that it has taken.
func (r *reserve) hold(on room) error {
	if r.held {
		return nil
	}
	err := os.MkdirAll(r.dir, 0o700)
	for i := 0; i < reserveInodes && err == nil; i++ {
		err = os.WriteFile(filepath.Join(r.dir, fmt.Sprint("inode-", i)), nil, 0o600)
	}
	if err == nil {
		err = r.holdBytes(r.size(on))
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

func (r *reserve) holdBytes(n int64) error {
	f, err := os.OpenFile(filepath.Join(r.dir, "bytes"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, n)
	if errors.Is(err, unix.EOPNOTSUPP) { // this file system cannot reserve bytes, so the reserve has only inodes
		err = nil
	}
	return errors.Join(err, f.Close())
}

// release frees the reserve.
func (r *reserve) release() error {
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
