package sdk

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// archive writes a tree as a tar stream.
type archive struct {
	ctx     context.Context
	tar     *tar.Writer
	source  string
	exclude exclusion
	anyLink bool // links may lead out of the tree

	entries int
	bytes   int64
}

// write writes the whole stream. Its first entry, ".", is the source itself: a directory or a single file.
func (a *archive) write() error {
	info, err := os.Stat(a.source)
	if err != nil {
		return fileError(err)
	}
	if info.IsDir() {
		err = a.tree(info)
	} else {
		err = a.single(info)
	}
	if err != nil {
		return err
	}
	return fileError(a.tar.Close())
}

func (a *archive) tree(info fs.FileInfo) error {
	root, err := os.OpenRoot(a.source)
	if err != nil {
		return fileError(err)
	}
	defer root.Close()
	if err := a.header(".", "", info); err != nil {
		return err
	}
	return a.dir(root, "", info)
}

// single writes the stream for a source that is a single file.
func (a *archive) single(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return protocol.Invalid("source", "%s is neither a file nor a directory", a.source)
	}
	f, err := os.OpenFile(a.source, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fileError(err)
	}
	return a.file(f, ".", info)
}

// dir adds the entries of a directory, sorted by name. It returns an error if root is not the directory that info
// describes: another process may have replaced the directory.
func (a *archive) dir(root *os.Root, name string, info fs.FileInfo) error {
	d, err := root.Open(".")
	if err != nil {
		return fileError(err)
	}
	now, err := d.Stat()
	if err == nil && !os.SameFile(info, now) {
		err = a.changed(name)
	}
	var names []string
	if err == nil {
		names, err = d.Readdirnames(-1)
	}
	d.Close()
	if err != nil {
		return fileError(err)
	}
	slices.Sort(names)
	for _, base := range names {
		if err := a.visit(root, base, path.Join(name, base)); err != nil {
			return err
		}
	}
	return nil
}

// visit adds one entry of a directory.
func (a *archive) visit(root *os.Root, base, name string) error {
	if a.ctx.Err() != nil {
		return a.ctx.Err()
	}
	info, err := root.Lstat(base)
	if err != nil {
		return fileError(err)
	}
	if a.exclude.matches(name, info.IsDir()) {
		return nil
	}
	if why := protocol.TreePathError(name); why != "" {
		return protocol.Invalid("source", "%.300s %s", a.path(name), why)
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		// O_NONBLOCK: if another process has replaced the file by a pipe, the open does not block.
		f, err := root.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return fileError(err)
		}
		return a.file(f, name, info)
	case mode.IsDir():
		below, err := root.OpenRoot(base)
		if err != nil {
			return fileError(err)
		}
		defer below.Close()
		if err := a.header(name, "", info); err != nil {
			return err
		}
		return a.dir(below, name, info)
	case mode.Type() == fs.ModeSymlink:
		to, err := root.Readlink(base)
		if err != nil {
			return fileError(err)
		}
		if to = filepath.ToSlash(to); !a.anyLink && !protocol.TreeLinkStays(name, to) {
			return protocol.Invalid("source", "%s leads out of %s: %s", a.path(name), a.source, to)
		}
		return a.header(name, to, info)
	}
	return protocol.Invalid("source", "%s is neither a file, a directory nor a link", a.path(name))
}

// path returns the path of an entry on this machine, for error messages.
func (a *archive) path(name string) string { return filepath.Join(a.source, filepath.FromSlash(name)) }

func (a *archive) changed(name string) error {
	return protocol.Errorf(protocol.FailedPrecondition, "", "%s changed while it was read", a.path(name))
}

// file adds a file and closes f. It returns an error if f is not the file that info describes: another process may have
// replaced the file.
func (a *archive) file(f *os.File, name string, info fs.FileInfo) error {
	defer f.Close()
	now, err := f.Stat()
	if err != nil {
		return fileError(err)
	}
	if !os.SameFile(info, now) || !now.Mode().IsRegular() {
		return a.changed(name)
	}
	if err := a.header(name, "", now); err != nil {
		return err
	}
	n, err := io.Copy(a.tar, &contextReader{a.ctx, f})
	switch {
	case errors.Is(err, tar.ErrWriteTooLong), err == nil && n != now.Size():
		return a.changed(name)
	case a.ctx.Err() != nil:
		return a.ctx.Err()
	}
	return fileError(err)
}

func (a *archive) header(name, link string, info fs.FileInfo) error {
	uid, gid := owner(info)
	h := &tar.Header{Name: name, Uid: uid, Gid: gid, Mode: int64(info.Mode().Perm()), Typeflag: tar.TypeReg,
		ModTime: info.ModTime().Truncate(time.Second)}
	for bit, unix := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if info.Mode()&bit != 0 {
			h.Mode |= unix
		}
	}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, link, 0o777
	default:
		h.Size = info.Size()
	}
	a.entries++
	if a.bytes += h.Size; a.entries > protocol.MaxTreeEntries || a.bytes > int64(protocol.MaxTreeBytes) {
		return protocol.Invalid("source", "%s has more than %d entries or %s",
			a.source, protocol.MaxTreeEntries, protocol.MaxTreeBytes)
	}
	return fileError(a.tar.WriteHeader(h))
}
