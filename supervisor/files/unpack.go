package files

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	// maxDeferred limits how many directories may have modes that would keep the user from filling them.
	maxDeferred = 10_000
	// fillable are the mode bits that the owner of a directory needs to create entries.
	fillable = 0o300
)

// unpacking writes one tar stream below a directory. Package os opens each name step by step, and refuses links that
// lead out of the directory, also those that another process makes meanwhile.
type unpacking struct {
	r        *protocol.FileUnpack
	root     *os.Root
	in       *input
	buf      []byte
	deferred []deferredMode
	count    protocol.FileCount
}

type deferredMode struct {
	name string
	mode fs.FileMode
}

// unpack writes a tree from a tar stream.
func (h *helper) unpack(in *input, r *protocol.FileUnpack) (*control.FileReply, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	at, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	if err := makeAll(at); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(at)
	if err != nil {
		return nil, failure(r.Path, err)
	}
	defer root.Close()
	u := &unpacking{r: r, root: root, in: in, buf: h.buf}
	stream := tar.NewReader(in)
	for {
		header, err := stream.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if in.broken != nil {
			return nil, in.broken
		}
		if err != nil {
			return nil, refuse("the stream is not a tar stream: %v", err)
		}
		if err := u.entry(header, stream); err != nil {
			return nil, u.failure(header.Name, err)
		}
	}
	if err := in.drain(); err != nil { // after the end, archives have padding
		return nil, err
	}
	for i := len(u.deferred) - 1; i >= 0; i-- {
		if err := root.Chmod(u.deferred[i].name, u.deferred[i].mode); err != nil {
			return nil, u.failure(u.deferred[i].name, err)
		}
	}
	return &control.FileReply{Count: &u.count}, nil
}

func refuse(format string, args ...any) error {
	return protocol.Errorf(protocol.InvalidArgument, protocol.ReasonCopyFailed, format, args...)
}

// failure translates an error of an entry. Package os reports a name that leads out of the directory as a text.
func (u *unpacking) failure(name string, err error) error {
	if known := (*protocol.Error)(nil); errors.As(err, &known) {
		return known
	}
	if errno := unix.Errno(0); !errors.As(err, &errno) {
		var in *fs.PathError
		if errors.As(err, &in) {
			return refuse("entry %.200q leads out of the directory, or through a link that does: %v", name, in.Err)
		}
	}
	return failure(name, err)
}

// entry writes one entry.
func (u *unpacking) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader { // git archive writes a global header; it describes no file
		return nil
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") { // a few bytes that expand to any size
			return refuse("entry %.200q is a sparse file", h.Name)
		}
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return refuse("entry %.200q is not a directory", h.Name)
		}
		return nil // it exists, and keeps its mode
	}
	if err := u.parents(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.directory(h, name)
	case tar.TypeReg:
		err = u.file(h, name, content)
	case tar.TypeSymlink:
		err = u.fresh(name, func() error { return u.symlink(h, name) })
	case tar.TypeLink:
		var to string
		if to, err = entryName(h.Linkname); err == nil {
			err = u.fresh(name, func() error { return u.root.Link(to, name) })
		}
	default:
		return refuse("entry %.200q is neither a directory, a file nor a link", h.Name)
	}
	if err == nil {
		u.count.Entries++
	}
	return err
}

// entryName returns the clean name of an entry, and refuses names outside the directory.
func entryName(name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case name == "", strings.ContainsRune(name, 0):
		return "", refuse("entry %.200q is empty or has a NUL byte", name)
	case path.IsAbs(name), clean == "..", strings.HasPrefix(clean, "../"):
		return "", refuse("entry %.200q is outside the directory", name)
	case len(clean) > maxRelative, strings.Count(clean, "/") >= maxDepth:
		return "", refuse("entry %.200q is nested too deeply", name)
	}
	return clean, nil
}

// parents creates the directories above an entry that the stream does not have.
func (u *unpacking) parents(name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	return u.root.MkdirAll(dir, defaultDirectoryMode)
}

// fresh makes a file or a link with a new name. With Overwrite, it first removes a file that has this name, but not a
// directory.
func (u *unpacking) fresh(name string, create func() error) error {
	err := create()
	if !errors.Is(err, unix.EEXIST) || !u.r.Overwrite {
		return err
	}
	info, statErr := u.root.Lstat(name)
	if statErr == nil && info.IsDir() {
		return unix.EISDIR
	}
	if err := u.root.Remove(name); err != nil {
		return err
	}
	return create()
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

// give sets the owner of an entry that was made with the user as its owner.
func (u *unpacking) give(h *tar.Header, name string) error {
	uid, gid, set, err := u.owner(h)
	if err != nil || !set || uid == unix.Geteuid() && gid == unix.Getegid() {
		return err
	}
	if err := u.root.Lchown(name, uid, gid); err != nil {
		return notGiven(h.Name, err)
	}
	return nil
}

func (u *unpacking) symlink(h *tar.Header, name string) error {
	if err := u.root.Symlink(h.Linkname, name); err != nil {
		return err
	}
	return u.give(h, name)
}

// directory makes a directory, or uses one that exists. The times of directories are not restored.
func (u *unpacking) directory(h *tar.Header, name string) error {
	mode := modeOf(h)
	err := u.root.Mkdir(name, 0o700)
	if errors.Is(err, unix.EEXIST) {
		info, statErr := u.root.Lstat(name)
		if statErr != nil || !info.IsDir() {
			return unix.EEXIST
		}
		return nil // a directory that exists keeps its mode and owner
	}
	if err != nil {
		return err
	}
	if mode&fillable == fillable {
		if err := u.root.Chmod(name, mode); err != nil {
			return err
		}
	} else if len(u.deferred) >= maxDeferred {
		return tooLarge("more than %d directories have modes that keep their owner from writing", maxDeferred)
	} else {
		u.deferred = append(u.deferred, deferredMode{name, mode})
	}
	return u.give(h, name)
}

// file writes a regular file.
func (u *unpacking) file(h *tar.Header, name string, content io.Reader) error {
	var file *os.File
	err := u.fresh(name, func() (err error) {
		file, err = u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer file.Close()
	n, err := io.CopyBuffer(onlyWriter{file}, onlyReader{content}, u.buf)
	u.count.Bytes += n
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = refuse("the stream ends in the middle of %.200q", h.Name)
	}
	if err != nil {
		_ = u.root.Remove(name) // the first error says more
		return err
	}
	if err := u.give(h, name); err != nil {
		return err
	}
	if err := file.Chmod(modeOf(h)); err != nil {
		return err
	}
	if !h.ModTime.IsZero() {
		_ = u.root.Chtimes(name, h.ModTime, h.ModTime) // a file system without times
	}
	return nil
}

// modeOf returns the mode of an entry, with setuid, setgid and sticky.
func modeOf(h *tar.Header) fs.FileMode {
	mode := fs.FileMode(h.Mode & 0o777)
	if h.Mode&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if h.Mode&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if h.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}
