package treetar

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Target says where a tree goes in a container, and what it may contain.
type Target struct {
	Root       string   // clean path, without the leading slash
	Missing    []string // directories to create, outermost first; the last one may be Root
	UID, GID   int      // owner of all entries; a UID of -1 keeps the owners of the upload
	MaxEntries int
	MaxBytes   int64
	Mounted    []string // absolute paths in the container at which something else is mounted
}

// Rewrite reads the tar stream of an uploaded tree and writes it again with all names below t.Root. It keeps the
// ids, mode and time of each entry and drops everything else that an archive can say about a file, such as extended
// attributes.
//
// An entry "." is the tree itself. If it is a directory, it describes Root if Root is missing, and is ignored if
// Root exists. If it is a file, it must be the only entry, and Root names that file. Entries that a mount would
// hide are checked like the others and then left out.
//
// Error: invalid_argument with reason copy_failed if the tree is refused, and otherwise the error of the stream.
func Rewrite(in io.Reader, out io.Writer, t Target) error {
	w := &rewriter{Target: t, in: tar.NewReader(in), out: tar.NewWriter(out), links: map[string]bool{}}
	for {
		h, err := w.in.Next()
		if errors.Is(err, io.EOF) {
			return w.finish()
		}
		if err != nil {
			return refuse("the tree is not a tar stream: %v", err)
		}
		if err := w.entry(h); err != nil {
			return err
		}
	}
}

// rewriter is the state of one Rewrite.
type rewriter struct {
	Target
	in  *tar.Reader
	out *tar.Writer

	entries int   // read so far, including global headers
	bytes   int64 // total size of these entries' files
	begun   bool  // an entry was accepted
	single  bool  // the tree is one file, which Root names

	links     map[string]bool // symbolic links accepted so far, by name
	linkBytes int             // total length of the names of these links
}

// entry counts one entry of the upload, checks it, and copies it to the output.
func (w *rewriter) entry(h *tar.Header) error {
	if h.Size < 0 || w.entries >= w.MaxEntries || h.Size > w.MaxBytes-w.bytes {
		return refuse("the tree has more than %d entries or %d bytes", w.MaxEntries, w.MaxBytes)
	}
	w.entries++
	w.bytes += h.Size
	if h.Typeflag == tar.TypeXGlobalHeader { // git archive writes a global header; it describes no file
		return nil
	}
	if !w.begun {
		if err := w.makeMissing(h); err != nil {
			return err
		}
	}
	if w.single {
		return refuse("the tree is a single file, but also has the entry %.200q", h.Name)
	}
	e, err := w.accept(h)
	if err != nil {
		return err
	}
	w.begun = true
	if e == nil || w.hidden(e.Name) {
		return nil
	}
	return w.copy(e, h.Name)
}

// copy writes an accepted header and the content of its file.
func (w *rewriter) copy(e *tar.Header, uploaded string) error {
	if err := w.out.WriteHeader(e); err != nil {
		return refuse("%.200q: %v", uploaded, err)
	}
	_, err := io.Copy(w.out, w.in)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse("the tree ends in the middle of %.200q", uploaded)
	}
	return err
}

// finish ends the output. An empty tree still creates its target.
func (w *rewriter) finish() error {
	var err error
	if !w.begun {
		err = w.makeMissing(nil)
	}
	return errors.Join(err, w.out.Close())
}

// makeMissing writes the directories that are missing. first is the first entry of the tree, or nil.
func (w *rewriter) makeMissing(first *tar.Header) error {
	for _, dir := range w.Missing {
		h := &tar.Header{
			Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, Uid: max(w.UID, 0), Gid: max(w.GID, 0), ModTime: time.Now(),
			Format: tar.FormatPAX,
		}
		if dir == w.Root && first != nil && path.Clean(first.Name) == "." {
			if first.Typeflag != tar.TypeDir { // the entry itself becomes Root
				break
			}
			w.describe(h, first)
		}
		if err := w.out.WriteHeader(h); err != nil {
			return refuse("%s: %v", dir, err)
		}
	}
	return nil
}

// hidden reports whether a mount hides an entry of the output: something is mounted at the entry's path or above it.
func (w *rewriter) hidden(name string) bool {
	at := "/" + path.Clean(name)
	return slices.ContainsFunc(w.Mounted, func(mount string) bool {
		return at == mount || strings.HasPrefix(at, strings.TrimSuffix(mount, "/")+"/")
	})
}

func refuse(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.InvalidArgument, protocol.ReasonCopyFailed, format, args...)
}
