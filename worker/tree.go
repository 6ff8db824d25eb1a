package worker

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// copyTrees places the uploaded trees of a spec that are for a service, or for the primary container
// for "", into its container, which has not started yet. What they have at or below the paths in hidden
// is left out: something else is mounted there.
func (s *sandbox) copyTrees(ctx context.Context, container, service string, copies []protocol.Copy, hidden []string) error {
	for i, c := range copies {
		if c.Service != service {
			continue
		}
		if err := s.copyTree(ctx, container, c, hidden); err != nil {
			e := *protocol.AsError(err)
			e.Field = fmt.Sprintf("spec.copies[%d]", i)
			if e.Code == protocol.NotFound {
				e.Code, e.Reason = protocol.FailedPrecondition, protocol.ReasonCopyFailed
			}
			return &e
		}
	}
	return nil
}

func (s *sandbox) copyTree(ctx context.Context, container string, c protocol.Copy, hidden []string) error {
	tree, err := s.newTree(ctx, container, c)
	if err != nil {
		return err
	}
	tree.hidden = hidden
	ctx, copied, done := s.w.disk.Copy(ctx, s.key)
	defer done()
	blob, err := s.w.conn.Blob(ctx, c.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	sum := sha256.New()
	r, w := io.Pipe()
	rewritten := make(chan error, 1)
	go func() {
		stored := &storedTree{r: blob}
		source := io.TeeReader(stored, io.MultiWriter(sum, copied))
		err := tree.rewrite(source, w)
		if err == nil {
			_, err = io.Copy(io.Discard, source) // padding belongs to the digest
		}
		if stored.err != nil { // which says nothing of the tree
			err = protocol.Errorf(protocol.Unavailable, "", "read the uploaded tree: %v", stored.err)
		}
		if err == nil && "sha256-"+hex.EncodeToString(sum.Sum(nil)) != c.Digest {
			err = copyFailed("what was uploaded does not match its digest %s", c.Digest)
		}
		w.CloseWithError(err)
		rewritten <- err
	}()
	copyErr := s.w.engine.CopyTo(ctx, container, "/", r)
	_ = r.CloseWithError(errors.New("the engine stopped reading")) // lets the other side end
	err = <-rewritten
	if stopped := new(protocol.Error); errors.As(context.Cause(ctx), &stopped) {
		return stopped
	}
	if err != nil && protocol.AsError(err).Reason == protocol.ReasonCopyFailed {
		return err
	}
	return copyErr
}

// storedTree reads an upload, and remembers whether the store failed.
type storedTree struct {
	r   io.Reader
	err error
}

func (t *storedTree) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		t.err = err
	}
	return n, err
}

func copyFailed(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.InvalidArgument, protocol.ReasonCopyFailed, format, args...)
}

// tree is an uploaded tree on its way into a container.
type tree struct {
	root    string   // where it goes, without the first slash
	missing []string // directories that are to be made for it, the outer ones first; the last may be root
	uid     int      // that everything belongs to; -1: who it belongs to in the stream
	gid     int
	entries int      // at most
	bytes   int64    // at most
	hidden  []string // paths in the container at which something is mounted

	begun     bool            // an entry was read
	links     map[string]bool // its symbolic links so far, by name
	linkBytes int             // of their names
	single    bool            // it is one file, which root names
}

// maxLinkBytes bounds what is remembered of a tree's links.
const maxLinkBytes = 32 << 20

// newTree looks what is missing of a copy's target.
func (s *sandbox) newTree(ctx context.Context, container string, c protocol.Copy) (*tree, error) {
	uid, gid, ok := c.Owners()
	if !ok {
		return nil, copyFailed("%.40q is no owner", c.Owner) // validated
	}
	t := &tree{uid: uid, gid: gid, entries: protocol.MaxTreeEntries, bytes: int64(protocol.MaxTreeBytes)}
	t.root = strings.TrimPrefix(path.Clean(c.Target), "/")
	var outerFirst []string
	for dir := t.root; dir != "."; dir = path.Dir(dir) {
		outerFirst = append([]string{dir}, outerFirst...)
	}
	for i, dir := range outerFirst {
		mode, there, err := s.w.engine.PathMode(ctx, container, "/"+dir)
		if err != nil {
			return nil, err
		}
		if !there {
			t.missing = outerFirst[i:]
			break
		}
		if mode.IsRegular() && dir != t.root {
			return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCopyFailed, "/%s is a file, and the target /%s below it", dir, t.root)
		}
	}
	return t, nil
}

// rewrite reads a tar stream that somebody uploaded and writes it again below root, letting through
// only what a plain tree is made of: directories, regular files, and links of both kinds that stay
// inside. Ids, mode and time are kept; what else an archive can say of a file is not.
//
// An entry "." is the tree itself: its directory, used where root is to be made and left as it is
// where it is there; or, as the only entry, the file that root names. An entry that a mount hides is
// left out, once it was judged like the others.
func (t *tree) rewrite(in io.Reader, out io.Writer) error {
	t.links = map[string]bool{}
	r, w := tar.NewReader(in), tar.NewWriter(out)
	var total int64
	for n := 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			if !t.begun {
				err = t.makeMissing(w, nil)
			} else {
				err = nil
			}
			return errors.Join(err, w.Close())
		}
		if err != nil {
			return copyFailed("the tree is not a tar stream: %v", err)
		}
		if h.Size < 0 || n >= t.entries || h.Size > t.bytes-total {
			return copyFailed("the tree has more than %d entries or %d bytes", t.entries, t.bytes)
		}
		total += h.Size
		if h.Typeflag == tar.TypeXGlobalHeader { // says nothing of a file
			continue
		}
		if !t.begun {
			if err := t.makeMissing(w, h); err != nil {
				return err
			}
		}
		if t.single {
			return copyFailed("the tree is a file, and has the entry %.200q besides", h.Name)
		}
		entry, err := t.plainEntry(h)
		if err != nil {
			return err
		}
		t.begun = true
		if entry == nil || t.hides(entry.Name) {
			continue
		}
		if err := w.WriteHeader(entry); err != nil {
			return copyFailed("%.200q: %v", h.Name, err)
		}
		if _, err := io.Copy(w, r); errors.Is(err, io.ErrUnexpectedEOF) {
			return copyFailed("the tree ends in the middle of %.200q", h.Name)
		} else if err != nil {
			return err
		}
	}
}

// makeMissing writes the directories that are missing. first is the tree's first entry.
func (t *tree) makeMissing(w *tar.Writer, first *tar.Header) error {
	for _, dir := range t.missing {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, Uid: max(t.uid, 0), Gid: max(t.gid, 0), ModTime: time.Now(), Format: tar.FormatPAX}
		if dir == t.root && first != nil && path.Clean(first.Name) == "." {
			if first.Typeflag != tar.TypeDir {
				break
			}
			t.describe(h, first)
		}
		if err := w.WriteHeader(h); err != nil {
			return copyFailed("%s: %v", dir, err)
		}
	}
	return nil
}

// describe gives an entry the ids, the mode and the time of the one that was uploaded.
func (t *tree) describe(e, h *tar.Header) {
	e.Uid, e.Gid, e.Mode, e.ModTime = h.Uid, h.Gid, h.Mode&0o7777, h.ModTime
	if t.uid >= 0 {
		e.Uid, e.Gid = t.uid, t.gid
	}
}

// hides says whether something is mounted at a name, or above it.
func (t *tree) hides(name string) bool {
	at := "/" + path.Clean(name)
	return slices.ContainsFunc(t.hidden, func(target string) bool { return below(at, target) })
}

// plainEntry is the header that an entry gets below root; nil for one that is not used.
func (t *tree) plainEntry(h *tar.Header) (*tar.Header, error) {
	name := path.Clean(h.Name)
	if why := protocol.TreePathError(h.Name); why != "" {
		return nil, copyFailed("entry %.200q %s", h.Name, why)
	}
	if link := t.linkAbove(name); link != "" {
		return nil, copyFailed("entry %.200q goes through the link %.200q", h.Name, link)
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= 1<<32-1 || int64(h.Gid) >= 1<<32-1 {
		return nil, copyFailed("entry %.200q belongs to %d:%d", h.Name, h.Uid, h.Gid)
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return nil, copyFailed("entry %.200q has holes", h.Name)
		}
	}
	e := &tar.Header{Typeflag: h.Typeflag, Name: path.Join(t.root, name), Format: tar.FormatPAX}
	t.describe(e, h)
	delete(t.links, name) // a later entry takes the place of an earlier one
	switch h.Typeflag {
	case tar.TypeReg:
		if t.single = name == "."; t.single && t.begun {
			return nil, copyFailed("entry %.200q is a file, where a directory was", h.Name)
		}
		e.Size = h.Size
	case tar.TypeDir:
		if name == "." {
			return nil, nil // made, or there
		}
		e.Name += "/"
	case tar.TypeSymlink:
		if name == "." || !protocol.TreeLinkStays(name, h.Linkname) {
			return nil, copyFailed("link %.200q leads out of the tree, to %.200q", h.Name, h.Linkname)
		}
		if t.linkBytes += len(name); t.linkBytes > maxLinkBytes {
			return nil, copyFailed("the tree has too many links")
		}
		t.links[name], e.Linkname = true, h.Linkname
	case tar.TypeLink:
		to := path.Clean(h.Linkname)
		if why := protocol.TreePathError(h.Linkname); why != "" || to == "." || name == "." {
			return nil, copyFailed("hard link %.200q leads out of the tree, to %.200q", h.Name, h.Linkname)
		}
		if t.links[to] || t.linkAbove(to) != "" {
			return nil, copyFailed("hard link %.200q goes through a link, to %.200q", h.Name, h.Linkname)
		}
		e.Linkname = path.Join(t.root, to)
	default:
		return nil, copyFailed("entry %.200q is neither a directory, a file nor a link", h.Name)
	}
	return e, nil
}

// linkAbove is the link of the tree through which a name would go: where it leads, and what ".."
// means below it, is not to be seen from the names.
func (t *tree) linkAbove(name string) string {
	if len(t.links) == 0 {
		return ""
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if t.links[dir] {
			return dir
		}
	}
	return ""
}
