package hostfiles

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
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/removal"
)

// Limits on a directory that is searched for links and copied for a sandbox.
const (
	maxShadowEntries = 200_000
	maxShadowBytes   = 2 << 30
	maxShadowDepth   = 64
)

// shadowDir returns the path of the directory with a sandbox's copies of tools' directories.
func shadowDir(d hostdir.Dir) string { return filepath.Join(d.Path, "shadow") }

// shadow copies a directory if it contains links to targets outside the directory, and reports whether it made a copy.
// The copy does not contain these links, because the sandbox must not read their targets. It also contains no sockets,
// pipes or devices. The copied files keep their owners, so the sandbox has the same access to them as to the originals.
func shadow(source *os.File, to string) (bool, error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", source.Fd()))
	if err != nil {
		return false, err
	}
	defer root.Close()
	search := &shadowing{}
	if err := search.dir(root, "", nil, 0); err != nil || !search.leadsOut {
		return false, err
	}
	if err := removal.Tree(context.Background(), to); err != nil { // an earlier try may have left a copy
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

// shadowing walks through a directory, either to search for links to targets outside the directory, or to copy the
// directory.
type shadowing struct {
	copying  bool
	leadsOut bool
	entries  int
	bytes    int64
}

// dir visits the entries of a directory. name is the path of this directory below the directory where the walk began.
// Subdirectories are opened through their parent's descriptor.
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
		return fmt.Errorf("it has more than %d entries, or more than %d levels", maxShadowEntries, maxShadowDepth)
	}
	for _, base := range names {
		if err := s.visit(from, base, path.Join(name, base), into, depth); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if s.leadsOut && !s.copying {
			return nil // the search has found a link to a target outside
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
		return s.subdir(from, base, name, into, depth, info)
	case mode.Type() == fs.ModeSymlink:
		return s.symlink(from, base, name, into, info)
	case mode.IsRegular() && s.copying:
		return s.file(from, base, into, info)
	}
	return nil
}

func (s *shadowing) symlink(from *os.Root, base, name string, into *os.Root, info fs.FileInfo) error {
	to, err := from.Readlink(base)
	if err != nil {
		return err
	}
	if !protocol.TreeLinkStays(name, to) {
		s.leadsOut = true
		return nil
	}
	if !s.copying {
		return nil
	}
	stat := info.Sys().(*syscall.Stat_t)
	return errors.Join(into.Symlink(to, base), into.Lchown(base, int(stat.Uid), int(stat.Gid)))
}

func (s *shadowing) subdir(from *os.Root, base, name string, into *os.Root, depth int, info fs.FileInfo) error {
	sub, err := from.OpenRoot(base)
	if err != nil {
		return err
	}
	defer sub.Close()
	if now, err := sub.Stat("."); err != nil || !os.SameFile(info, now) {
		return errors.Join(err, errChanged)
	}
	if !s.copying {
		return s.dir(sub, name, nil, depth+1)
	}
	if err := into.Mkdir(base, 0o700); err != nil {
		return err
	}
	made, err := into.OpenRoot(base)
	if err != nil {
		return err
	}
	defer made.Close()
	return errors.Join(s.dir(sub, name, made, depth+1), describe(into, base, info))
}

var errChanged = errors.New("it changed while it was being read")

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

// describe sets the owner, mode and time of a copied file to those of the original.
func describe(into *os.Root, base string, info fs.FileInfo) error {
	stat := info.Sys().(*syscall.Stat_t)
	return errors.Join(into.Chown(base, int(stat.Uid), int(stat.Gid)),
		into.Chmod(base, info.Mode()&(fs.ModePerm|fs.ModeSetgid|fs.ModeSticky)),
		into.Chtimes(base, time.Time{}, info.ModTime()))
}
