// Package removal removes directory trees that the processes in a sandbox made. Such a tree may be very deep or wide,
// and may contain links and mounts.
//
// A removal needs two open descriptors for a tree of any depth, follows no link, and does not remove files that are
// mounted inside the tree. Its errors contain only the last name of a path, because a full path could be very long.
//
//	top/a/b/c…   the contents of a are removed; its non-empty directories are moved up to top, under
//	             names that nobody can guess; then a is empty, and is removed
//
// Each directory is moved at most once, so the work grows only with the number of entries. A second call continues an
// interrupted removal.
//
// The package imports nothing of this module.
package removal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Tree removes the file or directory at a path. If the path names a link, Tree removes the link itself. The parent
// directories must belong to the caller, and may be links. A path that does not exist is not an error. If ctx ends,
// Tree returns the error of ctx, and a part of the tree may be left.
func Tree(ctx context.Context, path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failure(filepath.Base(path), err)
	}
	defer parent.Close()
	return Below(ctx, parent, filepath.Base(path))
}

// Contents removes all entries of a directory, but not the directory itself. A directory that does not exist is not an
// error.
func Contents(ctx context.Context, path string) error {
	top, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failure(filepath.Base(path), err)
	}
	defer top.Close()
	r := removing{top: top, mark: ".removed-" + rand.Text() + "-"}
	return r.empty(ctx)
}

// Below removes an entry of an open directory in the same way as [Tree]. name must not contain a slash.
func Below(ctx context.Context, dir *os.File, name string) error {
	err := unlink(int(dir.Fd()), name)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return failure(name, err)
	}
	top, err := open(int(dir.Fd()), name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failure(name, err)
	}
	r := removing{top: top, mark: ".removed-" + rand.Text() + "-"}
	err = r.empty(ctx)
	top.Close()
	if err != nil {
		return err
	}
	return failure(name, unlink(int(dir.Fd()), name))
}

// removing removes all entries of one directory.
type removing struct {
	top   *os.File
	mark  string // prefix of the names of directories that were moved up to top
	moved int
}

// batch is how many names are read at a time, because a directory may have more names than fit in memory.
const batch = 1024

// empty removes all entries of top.
func (r *removing) empty(ctx context.Context) error {
	return r.each(ctx, r.top, func(name string) error {
		err := unlink(int(r.top.Fd()), name)
		if !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		dir, err := open(int(r.top.Fd()), name)
		if err != nil {
			return ignoreGone(err)
		}
		defer dir.Close()
		if err := r.each(ctx, dir, func(below string) error { return r.take(dir, below) }); err != nil {
			return err
		}
		err = unlink(int(r.top.Fd()), name)
		if errors.Is(err, unix.ENOTEMPTY) { // a process added entries meanwhile; the next pass of r.each removes them
			return nil
		}
		return err
	})
}

// take removes an entry of a directory below top. A directory that is not empty is moved up to top instead.
func (r *removing) take(dir *os.File, name string) error {
	err := unlink(int(dir.Fd()), name)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	r.moved++
	return ignoreGone(unix.Renameat(int(dir.Fd()), name, int(r.top.Fd()), r.mark+strconv.Itoa(r.moved)))
}

// each reads a directory in passes, until a pass finds the directory empty. In each pass, it calls remove with every
// name in the directory. In a deep tree, a pass through top finds the directories that the previous pass moved up. Only
// ctx limits the number of passes.
func (r *removing) each(ctx context.Context, dir *os.File, remove func(name string) error) error {
	for {
		if _, err := dir.Seek(0, 0); err != nil {
			return failure("a directory", err)
		}
		seen := 0
		for {
			if err := ctx.Err(); err != nil {
				return err
			}
			names, err := dir.Readdirnames(batch)
			for _, name := range names {
				if err := remove(name); err != nil {
					return failure(name, err)
				}
			}
			seen += len(names)
			if len(names) == 0 { // the end of the directory, or an error
				if err != nil && !errors.Is(err, io.EOF) {
					return failure("a directory", err)
				}
				break
			}
		}
		if seen == 0 {
			return nil
		}
	}
}

// unlink removes a file or an empty directory. For a directory that is not empty, the error is ENOTEMPTY. A name that
// does not exist is not an error.
func unlink(dir int, name string) error {
	err := ignoreGone(unix.Unlinkat(dir, name, 0))
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	asDir := ignoreGone(unix.Unlinkat(dir, name, unix.AT_REMOVEDIR))
	if errors.Is(asDir, unix.EEXIST) {
		return unix.ENOTEMPTY
	}
	if errors.Is(asDir, unix.ENOTDIR) { // not a directory: report why it could not be removed as a file
		return err
	}
	return asDir
}

// open opens a directory. It does not follow a link, and fails if a file system is mounted on the directory.
func open(dir int, name string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat2(
		dir,
		name,
		&unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS},
	)
	if errors.Is(err, unix.ENOSYS) {
		fd, err = unix.Openat(dir, name, flags, 0)
	}
	if errors.Is(err, unix.EXDEV) {
		return nil, errors.New("a file system is mounted on it")
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "directory"), nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxName limits how many bytes of a name an error contains.
const maxName = 80

// Error says which file or directory could not be removed.
type Error struct {
	Name string // last name in the path, shortened and quoted
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("remove %s: %v", e.Name, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// failure returns an Error with this name. It returns err itself if err is the error of a context, or is already an
// Error. An err that is already an Error names a file inside the directory called name.
func failure(name string, err error) error {
	var named *Error
	if err == nil || errors.As(err, &named) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	if len(name) > maxName {
		name = name[:maxName] + "…"
	}
	return &Error{Name: strconv.Quote(name), Err: err}
}
