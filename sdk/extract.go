package sdk

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// extraction writes a tar stream that a sandbox made below a directory of this machine. The stream is hostile. All
// writing goes through root, which refuses every path that leaves the directory, also by links. Files get neither the
// owner of the stream nor the bits setuid, setgid and sticky. No file that exists is opened: a new file replaces it.
type extraction struct {
	ctx       context.Context
	root      *os.Root
	exclude   exclusion
	keepLinks bool
	progress  func(done, total int64) // may be nil

	made  []madeDir // directories whose modes and times are set at the end
	count FileCount
}

type madeDir struct {
	name string
	mode fs.FileMode
	at   time.Time
}

const (
	extractedDir  fs.FileMode = 0o700 // mode of a directory while it is filled
	extractedFile fs.FileMode = 0o600 // mode of a file while it is written
)

// run writes all entries.
func (x *extraction) run(from io.Reader) error {
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return x.finish()
		}
		if err == nil {
			err = x.ctx.Err()
		}
		if err == nil {
			err = x.entry(h, r)
		}
		if err != nil {
			return badTar(err)
		}
	}
}

// badTar returns an *Error for an error about the stream.
func badTar(err error) error {
	if wrong := (*fs.PathError)(nil); errors.As(err, &wrong) && strings.Contains(wrong.Err.Error(), "escapes") {
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied,
			"a link in the target directory leads out of that directory: %v", err)
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonUndecodable, "the sandbox sent no valid tar stream: %v",
			err)
	}
	return fileError(err)
}

func (x *extraction) entry(h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if why := protocol.TreePathError(h.Name); why != "" {
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied,
			"the sandbox sent an entry whose path %s: %.300q", why, h.Name)
	}
	if h.Typeflag == tar.TypeXGlobalHeader || x.excludes(name, h.Typeflag == tar.TypeDir) {
		return nil
	}
	if x.count.Entries++; x.count.Entries > protocol.MaxTreeEntries {
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge, "the tree has more than %d entries",
			protocol.MaxTreeEntries)
	}
	if isSparse(h) {
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied,
			"the sandbox sent a file with holes, which would need more room than the stream has bytes: %.300q", h.Name)
	}
	if h.Typeflag != tar.TypeDir && name == "." {
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied,
			"the sandbox sent an entry that would replace the target directory")
	}
	if above := path.Dir(name); above != "." {
		if err := x.root.MkdirAll(above, extractedDir); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return x.directory(name, h)
	case tar.TypeReg:
		return x.file(name, h, content)
	case tar.TypeSymlink:
		return x.link(name, h)
	case tar.TypeLink:
		return x.hardLink(name, h)
	}
	x.skip(name, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNotRegular,
		"is neither a file, a directory nor a link"))
	return nil
}

// isSparse reports whether an entry has holes, which a sandbox's helper never sends. A few bytes of such an entry
// become a file of any size, which [WithMaxBytes] would not notice.
func isSparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// excludes reports whether an entry or a directory above it is left out.
func (x *extraction) excludes(name string, dir bool) bool {
	for at := 0; len(x.exclude) > 0; {
		end := strings.IndexByte(name[at:], '/')
		if end < 0 {
			return x.exclude.matches(name, dir)
		}
		if at += end; x.exclude.matches(name[:at], true) {
			return true
		}
		at++
	}
	return false
}

func (x *extraction) skip(name string, why *Error) {
	x.count.Entries--
	x.count.Skips++
	if len(x.count.Skipped) < protocol.MaxFileSkips {
		x.count.Skipped = append(x.count.Skipped, FileSkip{Path: name, Error: why})
	}
}

func (x *extraction) directory(name string, h *tar.Header) error {
	if name == "." {
		return nil
	}
	err := x.root.Mkdir(name, extractedDir)
	if errors.Is(err, fs.ErrExist) {
		info, statErr := x.root.Stat(name) // a link out of the directory is an error here
		if statErr == nil && info.IsDir() {
			return nil
		}
		return errors.Join(err, statErr)
	}
	if err == nil {
		x.made = append(x.made, madeDir{name, fs.FileMode(h.Mode).Perm(), h.ModTime})
	}
	return err
}

// file writes a file under a temporary name, and then renames it.
func (x *extraction) file(name string, h *tar.Header, content io.Reader) error {
	if x.progress != nil {
		content = &progressReader{r: content, done: x.count.Bytes, total: -1, report: x.progress}
	}
	err := replaceFile(x.root, name, &contextReader{x.ctx, content}, fs.FileMode(h.Mode).Perm(), h.ModTime)
	x.count.Bytes += h.Size
	return err
}

// replaceFile writes a file of a directory. Until all bytes are there, readers see the old file.
func replaceFile(root *os.Root, name string, content io.Reader, mode fs.FileMode, at time.Time) error {
	part := path.Join(path.Dir(name), ".boxfleet-"+rand.Text())
	f, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, extractedFile)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(onlyWriter{f}, content, make([]byte, copyBuffer))
	if err == nil {
		err = f.Chmod(mode)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil && !at.IsZero() {
		err = root.Chtimes(part, time.Time{}, at)
	}
	if err == nil {
		err = root.Rename(part, name)
	}
	if err != nil {
		_ = root.Remove(part) // the first error says why
	}
	return err
}

// link makes a symbolic link. By default it must lead to something below the directory: a later program that runs as
// the caller could otherwise be led to any file of this machine.
func (x *extraction) link(name string, h *tar.Header) error {
	if !x.keepLinks && (!protocol.TreeLinkStays(name, h.Linkname) || x.leadsUpElsewhere(name, h.Linkname)) {
		x.skip(name, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonPathDenied,
			"is a link that leads out of the tree: %.300q", h.Linkname))
		return nil
	}
	return x.place(name, func(part string) error { return x.root.Symlink(h.Linkname, part) })
}

// leadsUpElsewhere reports whether a link begins with "..", and is in a directory that its name reaches through another
// link. The name then does not say where ".." leads.
func (x *extraction) leadsUpElsewhere(name, to string) bool {
	if !strings.HasPrefix(path.Clean(to), "..") {
		return false
	}
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if info, err := x.root.Lstat(above); err != nil || !info.IsDir() {
			return true
		}
	}
	return false
}

func (x *extraction) hardLink(name string, h *tar.Header) error {
	if why := protocol.TreePathError(h.Linkname); why != "" {
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied,
			"the sandbox sent a hard link whose target %s: %.300q", why, h.Linkname)
	}
	info, err := x.root.Lstat(path.Clean(h.Linkname))
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied,
			"the sandbox sent a hard link to something that is no file: %.300q", h.Linkname)
	}
	return x.place(name, func(part string) error { return x.root.Link(path.Clean(h.Linkname), part) })
}

// place makes something under a temporary name, and then renames it.
func (x *extraction) place(name string, create func(part string) error) error {
	part := path.Join(path.Dir(name), ".boxfleet-"+rand.Text())
	if err := create(part); err != nil {
		return err
	}
	err := x.root.Rename(part, name)
	_ = x.root.Remove(part) // it is still there after an error, or if both names were one file
	return err
}

// finish sets the modes and times of the directories. The last ones come first, because a directory without the
// permission to write makes those below it unreachable.
func (x *extraction) finish() error {
	for i := len(x.made) - 1; i >= 0; i-- {
		d := x.made[i]
		if err := x.root.Chtimes(d.name, time.Time{}, d.at); err != nil {
			return err
		}
		if err := x.root.Chmod(d.name, d.mode); err != nil {
			return err
		}
	}
	return nil
}
