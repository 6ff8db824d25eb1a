package files

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// copy copies a file or a tree.
func (h *helper) copy(ctx context.Context, r *protocol.FileCopy) (*control.FileReply, error) {
	from, err := h.place("from", r.From)
	if err != nil {
		return nil, err
	}
	defer from.close()
	to, err := h.place("to", r.To)
	if err != nil {
		return nil, err
	}
	defer to.close()
	c := &copying{ctx: ctx, overwrite: r.Overwrite, recursive: r.Recursive}
	if err := c.copy(from, to); err != nil {
		return nil, err
	}
	c.count.Skipped, c.count.Skips = c.skips.kept, c.skips.count
	return &control.FileReply{Count: &c.count}, nil
}

// copying is one copy. Like a walk, it opens each directory of the destination by its name in the directory above,
// without following links, and makes and removes entries in open directories only. So a directory of the destination
// that is replaced by a link meanwhile leads nowhere else.
type copying struct {
	ctx                  context.Context
	overwrite, recursive bool
	dirs                 []int // descriptors of the destination and of the directories down to the current entry
	count                protocol.FileCount
	skips                skips
}

func (c *copying) copy(from, to *place) error {
	stat, err := from.lstat()
	if err != nil {
		return failure(from.asked, err)
	}
	switch kind := typeOf(stat.Mode); {
	case kind == protocol.FileRegular, kind == protocol.FileLink:
		e := &entry{dir: from.dir, name: from.name, rel: from.asked, stat: stat}
		return failure(to.asked, c.one(e, to.dir, to.name))
	case kind != protocol.FileDirectory:
		return notRegular(from.asked, kind)
	case !c.recursive:
		return failure(from.asked, unix.EISDIR)
	}
	return c.tree(from, to)
}

// tree copies a directory with what is below it.
func (c *copying) tree(from, to *place) error {
	fd, err := openAt(from.dir, from.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return failure(from.asked, err)
	}
	var stat unix.Stat_t
	if err = unix.Fstat(fd, &stat); err == nil && to.below(&stat) {
		err = protocol.Invalid("to", "a directory cannot be copied into itself")
	}
	if err == nil {
		err = c.directory(to.dir, to.name, &stat)
	}
	if err != nil {
		unix.Close(fd)
		return failure(to.asked, err)
	}
	defer c.leave(0)
	w := walk{ctx: c.ctx, hidden: true, depth: -1, skipped: c.skips.add, visit: c.entry}
	return w.belowOpen(fd, from.asked)
}

// entry copies an entry of the tree. The walk came through the directories above it, so they are open.
func (c *copying) entry(e *entry) error {
	level := strings.Count(e.rel, "/")
	c.leave(level + 1)
	return failure(e.rel, c.one(e, c.dirs[level], e.name))
}

// leave closes the directories below a level.
func (c *copying) leave(level int) {
	for _, fd := range c.dirs[level:] {
		unix.Close(fd)
	}
	c.dirs = c.dirs[:level]
}

// one copies one entry of a tree, without the content of a directory.
func (c *copying) one(e *entry, dir int, name string) error {
	switch kind := typeOf(e.stat.Mode); kind {
	case protocol.FileDirectory:
		return c.directory(dir, name, &e.stat)
	case protocol.FileLink:
		return c.link(e, dir, name)
	case protocol.FileRegular:
		return c.file(e, dir, name)
	default:
		c.skips.add(e.rel, notRegular(e.rel, kind))
		return nil
	}
}

// directory makes a directory, and opens it for its entries.
func (c *copying) directory(dir int, name string, from *unix.Stat_t) error {
	if err := unix.Mkdirat(dir, name, from.Mode&0o777|0o700); err != nil && (err != unix.EEXIST || !c.overwrite) {
		return err
	}
	fd, err := openAt(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	switch err {
	case nil:
		c.dirs = append(c.dirs, fd)
		c.count.Entries++
	case unix.ENOTDIR, unix.ELOOP:
		return unix.EEXIST // it is no directory, or a link replaced it
	}
	return err
}

func (c *copying) link(e *entry, dir int, name string) error {
	leads := readLink(e.dir, e.name)
	if leads == "" {
		c.skips.add(e.rel, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonFileChanged,
			"%.200q was replaced while it was copied", e.rel))
		return nil
	}
	err := unix.Symlinkat(leads, dir, name)
	if err == unix.EEXIST && c.overwrite {
		if err := unix.Unlinkat(dir, name, 0); err != nil {
			return err
		}
		err = unix.Symlinkat(leads, dir, name)
	}
	if err == nil {
		c.count.Entries++
	}
	return err
}

func (c *copying) file(e *entry, dir int, name string) error {
	source, stat, err := openChecked(e.dir, e.name, e.rel, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		c.skips.add(e.rel, err)
		return nil
	}
	defer source.Close()
	if existing, err := lstatAt(dir, name); err == nil {
		switch {
		case !c.overwrite:
			return unix.EEXIST
		case sameFile(&existing, &stat):
			return protocol.Invalid("to", "is the same file")
		}
		if err := unix.Unlinkat(dir, name, 0); err != nil {
			return err
		}
	}
	fd, err := openAt(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	made := os.NewFile(uintptr(fd), name)
	defer made.Close()
	n, err := copyContent(c.ctx, made, source, stat.Size)
	if err == nil {
		err = unix.Fchmod(fd, stat.Mode&0o7777)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, name, 0) // the first error says more
		return errnoOf(err)
	}
	times := []unix.Timeval{unix.NsecToTimeval(stat.Atim.Nano()), unix.NsecToTimeval(stat.Mtim.Nano())}
	_ = unix.Futimes(fd, times) // a file system without times
	c.count.Entries++
	c.count.Bytes += n
	return nil
}

// copyContent copies the content of a file, and leaves its holes out. It returns the number of bytes that it wrote.
func copyContent(ctx context.Context, to, from *os.File, size int64) (written int64, err error) {
	buf := make([]byte, copyBuffer)
	for at := int64(0); at < size; {
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO { // only a hole is left
			break
		}
		if err != nil {
			begin = at
		}
		end, err := unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE)
		if err != nil || end <= begin {
			end = size
		}
		for at = begin; at < end; {
			if ctx.Err() != nil {
				return written, ctx.Err()
			}
			n, err := from.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
			if n == 0 {
				return written, notEnd(err)
			}
			if _, err := to.WriteAt(buf[:n], at); err != nil {
				return written, err
			}
			at += int64(n)
			written += int64(n)
		}
	}
	return written, to.Truncate(size)
}

// notEnd returns nil for the end of a file that became shorter.
func notEnd(err error) error {
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return errno
	}
	return nil
}
