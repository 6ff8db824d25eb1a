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

// fillable are the mode bits that the owner of a directory needs to create entries.
const fillable = 0o300

// unpacking writes one tar stream below a directory. Package os opens each name step by step, and refuses links that
// lead out of the directory, also those that another process makes meanwhile.
type unpacking struct {
	owners   *giver
	r        *protocol.FileUnpack
	byWorker bool // the worker sets owners, because the kernel does not let the user do so
	root     *os.Root
	in       *input
	buf      []byte
	deferred []deferred
	size     int // of deferred
	count    protocol.FileCount
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
	var old unix.Stat_t
	missing := unix.Stat(at, &old) == unix.ENOENT
	if err := makeAll(at); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(at)
	if err != nil {
		return nil, failure(r.Path, err)
	}
	defer root.Close()
	u := &unpacking{owners: &h.owners, r: r, root: root, in: in, buf: h.buf}
	u.byWorker = h.owners.gives && !mayChown() && (r.Owner != "" || r.KeepOwner)
	if missing {
		if err := u.own(); err != nil {
			return nil, err
		}
	}
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
	for i := len(u.deferred) - 1; i >= 0; i-- { // directories before those above them
		if err := u.complete(&u.deferred[i]); err != nil {
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
		if u.byWorker && errors.Is(err, unix.EPERM) { // the kernel links no files of others
			e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied, "entry %.200q is a hard link to a file "+
				"that has another owner already; leave out the owners, or use a profile with the capability CHOWN", h.Name)
			e.Field = "owner"
			err = e
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

func (u *unpacking) symlink(h *tar.Header, name string) error {
	if err := u.root.Symlink(h.Linkname, name); err != nil || u.byWorker { // the worker gives no links away
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
	uid, gid, err := u.other(h)
	if err != nil {
		return err
	}
	if u.byWorker && uid >= 0 {
		return u.later(deferred{name, mode &^ dropped, uid, gid})
	}
	if mode&fillable == fillable {
		err = u.root.Chmod(name, mode)
	} else {
		err = u.later(deferred{name, mode, -1, -1})
	}
	if err != nil {
		return err
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
	return u.describe(h, name, file)
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
