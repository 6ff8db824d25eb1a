package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/removal"
)

// Bounds of a directory that is looked through, and copied, for a sandbox.
const (
	maxShadowEntries = 200_000
	maxShadowBytes   = 2 << 30
	maxShadowDepth   = 64
)

func (d directory) shadows() string           { return filepath.Join(d.path, "shadow") }
func (d directory) shadow(name string) string { return filepath.Join(d.shadows(), name) }

// shadow makes a copy of a directory where it holds links that lead out of it, and says whether it
// did. What leads out is left out of the copy, and so are sockets, pipes and devices: what a link
// leads to is the worker's to read, and may not be the sandbox's. The owners stay, so that the
// sandbox may do with the copy what it could do with the directory.
func shadow(source *os.File, to string) (bool, error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", source.Fd()))
	if err != nil {
		return false, err
	}
	defer root.Close()
	looking := &shadowing{}
	if err := looking.dir(root, "", nil, 0); err != nil || !looking.leadsOut {
		return false, err
	}
	if err := removal.Tree(context.Background(), to); err != nil { // of an earlier try
		return false, err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return false, err
	}
	into, err := os.OpenRoot(to)
	if err != nil {
		return false, err
	}
	defer into.Close()
	info, err := root.Stat(".")
	if err != nil {
		return false, err
	}
	copying := &shadowing{copying: true}
	return true, errors.Join(copying.dir(root, "", into, 0), describe(into, ".", info))
}

// shadowing goes through a directory, to find whether links lead out of it, or to copy it.
type shadowing struct {
	copying  bool
	leadsOut bool
	entries  int
	bytes    int64
}

// dir goes through what is in a directory. Each directory is opened below the one before.
func (s *shadowing) dir(from *os.Root, name string, into *os.Root, depth int) error {
	d, err := from.Open(".")
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return err
	}
	if s.entries += len(names); s.entries > maxShadowEntries || depth > maxShadowDepth {
		return fmt.Errorf("it has more than %d entries, or directories deeper than %d", maxShadowEntries, maxShadowDepth)
	}
	for _, base := range names {
		if err := s.visit(from, base, path.Join(name, base), into, depth); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if s.leadsOut && !s.copying {
			return nil // all that was asked
		}
	}
	return nil
}

func (s *shadowing) visit(from *os.Root, base, name string, into *os.Root, depth int) error {
	info, err := from.Lstat(base)
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return s.directory(from, base, name, into, depth, info)
	case mode.Type() == fs.ModeSymlink:
		to, err := from.Readlink(base)
		if err != nil {
			return err
		}
		if !protocol.TreeLinkStays(name, to) {
			s.leadsOut = true
			return nil
		}
		if s.copying {
			stat := info.Sys().(*syscall.Stat_t)
			return errors.Join(into.Symlink(to, base), into.Lchown(base, int(stat.Uid), int(stat.Gid)))
		}
	case mode.IsRegular() && s.copying:
		return s.file(from, base, into, info)
	}
	return nil
}

func (s *shadowing) directory(from *os.Root, base, name string, into *os.Root, depth int, info fs.FileInfo) error {
	below, err := from.OpenRoot(base)
	if err != nil {
		return err
	}
	defer below.Close()
	if now, err := below.Stat("."); err != nil || !os.SameFile(info, now) {
		return errors.Join(err, errChanged)
	}
	if !s.copying {
		return s.dir(below, name, nil, depth+1)
	}
	if err := into.Mkdir(base, 0o700); err != nil {
		return err
	}
	made, err := into.OpenRoot(base)
	if err != nil {
		return err
	}
	defer made.Close()
	return errors.Join(s.dir(below, name, made, depth+1), describe(into, base, info))
}

var errChanged = errors.New("it changed while it was read")

func (s *shadowing) file(from *os.Root, base string, into *os.Root, info fs.FileInfo) error {
	source, err := from.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer source.Close()
	if now, err := source.Stat(); err != nil || !os.SameFile(info, now) {
		return errors.Join(err, errChanged)
	}
	made, err := into.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(made, io.LimitReader(source, maxShadowBytes-s.bytes+1))
	if s.bytes += n; s.bytes > maxShadowBytes {
		err = fmt.Errorf("it has more than %d bytes", maxShadowBytes)
	}
	return errors.Join(err, made.Close(), describe(into, base, info))
}

// describe gives a copy the owner, the mode and the time of what it is of.
func describe(into *os.Root, base string, info fs.FileInfo) error {
	stat := info.Sys().(*syscall.Stat_t)
	return errors.Join(into.Chown(base, int(stat.Uid), int(stat.Gid)), into.Chmod(base, info.Mode()&(fs.ModePerm|fs.ModeSetgid|fs.ModeSticky)),
		into.Chtimes(base, time.Time{}, info.ModTime()))
}
