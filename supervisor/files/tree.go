package files

import (
	"context"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// move renames a file or a directory.
func (h *helper) move(ctx context.Context, r *protocol.FileMove) (*control.FileReply, error) {
	from, err := h.place("from", r.From)
	if err != nil {
		return nil, err
	}
	defer from.close()
	if _, err := from.lstat(); err != nil {
		return nil, failure(r.From, err)
	}
	to, err := h.place("to", r.To)
	if err != nil {
		return nil, err
	}
	defer to.close()
	if r.Overwrite {
		err = unix.Renameat(from.dir, from.name, to.dir, to.name)
	} else {
		err = renameFresh(from.dir, from.name, to.dir, to.name)
	}
	if err == unix.EXDEV {
		err = moveAcross(ctx, r, from, to)
	}
	if err != nil {
		return nil, failure(r.To, err)
	}
	stat, err := to.lstat()
	if err != nil {
		return nil, failure(r.To, err)
	}
	info := readNames().info(r.To, &stat)
	return &control.FileReply{File: &info}, nil
}

// moveAcross copies to another file system and then removes the original. It removes nothing unless the copy is
// complete.
func moveAcross(ctx context.Context, r *protocol.FileMove, from, to *place) error {
	c := &copying{ctx: ctx, overwrite: r.Overwrite, recursive: true}
	if err := c.copy(from, to); err != nil {
		return err
	}
	if c.skips.count > 0 {
		return c.skips.kept[0].Error
	}
	return removeTree(ctx, from.dir, strings.TrimRight(from.name, "/"), 0, &protocol.FileCount{})
}

// remove removes a file or a tree.
func (h *helper) remove(ctx context.Context, r *protocol.FileRemove) (*control.FileReply, error) {
	asked, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	switch path.Base(strings.TrimRight(asked, "/")) {
	case ".", "..", "/":
		return nil, protocol.Invalid("path", "must end in the name of what is to be removed, got %.80q", r.Path)
	}
	count := &protocol.FileCount{}
	at, err := h.place("path", r.Path)
	if e := protocol.AsError(err); e != nil && r.Missing && e.Reason == protocol.ReasonPathNotFound {
		return &control.FileReply{Count: count}, nil
	} else if e != nil {
		return nil, e
	}
	defer at.close()
	at.name = strings.TrimRight(at.name, "/")
	stat, err := at.lstat()
	switch {
	case err == unix.ENOENT && r.Missing:
		return &control.FileReply{Count: count}, nil
	case err != nil:
		return nil, failure(r.Path, err)
	case typeOf(stat.Mode) == protocol.FileDirectory && !r.Recursive:
		if err := unix.Unlinkat(at.dir, at.name, unix.AT_REMOVEDIR); err != nil {
			return nil, failure(r.Path, err)
		}
		count.Entries++
	default:
		if err := removeTree(ctx, at.dir, at.name, 0, count); err != nil {
			return nil, failure(r.Path, err)
		}
	}
	return &control.FileReply{Count: count}, nil
}

// removeTree removes an entry of a directory, with all that is below it. It follows no link: a directory is opened by
// its name, without following links, and what is no directory is only unlinked. Entries that appear meanwhile are
// removed too.
func removeTree(ctx context.Context, dir int, name string, level int, count *protocol.FileCount) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := unix.Unlinkat(dir, name, 0)
	if err == nil {
		count.Entries++
	}
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM { // some file systems say EPERM for a directory
		return err
	}
	if level >= maxDepth {
		return tooLarge("the directory is nested too deeply")
	}
	fd, openErr := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if openErr == unix.ENOTDIR || openErr == unix.ELOOP {
		return err
	}
	if openErr == nil {
		if err := emptyDirectory(ctx, os.NewFile(uintptr(fd), name), level, count); err != nil {
			return err
		}
	}
	switch err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); {
	case err == nil:
		count.Entries++
	case err != unix.ENOENT && openErr != nil: // an empty directory that the user may not read can be removed
		return openErr
	case err != unix.ENOENT:
		return err
	}
	return nil
}

// emptyDirectory removes the entries of an open directory, and closes it.
func emptyDirectory(ctx context.Context, dir *os.File, level int, count *protocol.FileCount) error {
	defer dir.Close()
	for {
		names, _, err := namesAfter(ctx, dir, "", true, batchLeast<<4)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if err := removeTree(ctx, int(dir.Fd()), name, level+1, count); err != nil {
				return failure(name, err)
			}
		}
	}
}
