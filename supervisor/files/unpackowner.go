package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// maxDeferred limits the size of what is remembered about directories whose mode or owner would keep the user from
	// filling them, in bytes. Each directory counts with its name and deferredSize.
	maxDeferred  = 8 << 20
	deferredSize = 64

	// dropped are the mode bits that a file loses when the worker sets its owner.
	dropped = fs.ModeSetuid | fs.ModeSetgid
)

// deferred is a directory that gets its mode and its owner when it has its content.
type deferred struct {
	name     string
	mode     fs.FileMode
	uid, gid int // -1: the user
}

// owner returns the owner that an entry gets, or false if it belongs to the user.
func (u *unpacking) owner(h *tar.Header) (uid, gid int, set bool, err error) {
	if u.r.Owner != "" {
		uid, gid, err = protocol.FileOwner("owner", u.r.Owner)
		return uid, gid, true, err
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= 1<<32-1 || int64(h.Gid) >= 1<<32-1 {
		return 0, 0, false, refuse("entry %.200q has the invalid owner %d:%d", h.Name, h.Uid, h.Gid)
	}
	return h.Uid, h.Gid, u.r.KeepOwner, nil
}

// other returns the owner that an entry gets if it is not the user, and otherwise -1.
func (u *unpacking) other(h *tar.Header) (uid, gid int, err error) {
	uid, gid, set, err := u.owner(h)
	if err != nil || !set || uid == unix.Geteuid() && gid == unix.Getegid() {
		return -1, -1, err
	}
	return uid, gid, nil
}

// give sets the owner of an entry that was made with the user as its owner.
func (u *unpacking) give(h *tar.Header, name string) error {
	uid, gid, err := u.other(h)
	if err != nil || uid < 0 {
		return err
	}
	err = u.root.Lchown(name, uid, gid)
	if errors.Is(err, unix.EPERM) {
		return notGiven(owned(uid, gid))
	}
	return err
}

func owned(uid, gid int) string { return fmt.Sprintf("%d:%d", uid, gid) }

// giveOpen sets the owner of an open file or directory, after its mode and its times.
func (u *unpacking) giveOpen(file *os.File, uid, gid int) error {
	given, err := giveTo(int(file.Fd()), uid, gid)
	if err != nil || given {
		return err
	}
	return u.owners.request(int(file.Fd()), uid, gid)
}

// later remembers a directory that gets its mode and its owner at the end.
func (u *unpacking) later(d deferred) error {
	if u.size += len(d.name) + deferredSize; u.size > maxDeferred {
		return tooLarge("the names of directories with modes or owners that keep the user from writing have more than "+
			"%d MiB together", maxDeferred>>20)
	}
	u.deferred = append(u.deferred, d)
	return nil
}

// own gives away the directory itself, which the operation has made. The owner in the stream is not known yet, and
// concerns its entries only.
func (u *unpacking) own() error {
	if u.r.Owner == "" {
		return nil
	}
	uid, gid, err := protocol.FileOwner("owner", u.r.Owner)
	if err != nil {
		return err
	}
	return u.later(deferred{".", defaultDirectoryMode, uid, gid})
}

// complete sets the mode and the owner of a directory that has its content.
func (u *unpacking) complete(d *deferred) error {
	if d.uid < 0 {
		return u.root.Chmod(d.name, d.mode)
	}
	dir, err := u.root.OpenFile(d.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Chmod(d.mode); err != nil {
		return err
	}
	return u.giveOpen(dir, d.uid, d.gid)
}

// describe sets the owner, the mode and the time of a new file.
func (u *unpacking) describe(h *tar.Header, name string, file *os.File) error {
	uid, gid, err := u.other(h)
	if err != nil {
		return err
	}
	mode := modeOf(h)
	switch {
	case uid < 0:
	case u.byWorker:
		mode &^= dropped
	default:
		if err := u.give(h, name); err != nil {
			return err
		}
	}
	if err := file.Chmod(mode); err != nil {
		return err
	}
	if !h.ModTime.IsZero() {
		_ = u.root.Chtimes(name, h.ModTime, h.ModTime) // a file system without times
	}
	if !u.byWorker {
		return nil
	}
	return u.giveOpen(file, uid, gid) // at last: afterwards the user cannot change the file
}
