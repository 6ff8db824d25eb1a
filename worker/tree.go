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
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// Bounds of an uploaded tree.
const (
	maxTreeEntries = 1_000_000
	maxTreeBytes   = 64 << 30
)

// copyTrees places the uploaded trees of a spec into a container that has not started yet.
func (s *sandbox) copyTrees(ctx context.Context, container string, copies []protocol.Copy) error {
	for i, c := range copies {
		if err := s.copyTree(ctx, container, c); err != nil {
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

func (s *sandbox) copyTree(ctx context.Context, container string, c protocol.Copy) error {
	blob, err := s.w.conn.Blob(ctx, c.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	sum := sha256.New()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		stored := &storedTree{r: blob}
		source := io.TeeReader(stored, sum)
		err := rewriteTree(source, w, c.Target)
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
		done <- err
	}()
	copyErr := s.w.engine.CopyTo(ctx, container, "/", r)
	_ = r.CloseWithError(errors.New("the engine stopped reading")) // lets the other side end
	if err := <-done; err != nil && protocol.AsError(err).Reason == protocol.ReasonCopyFailed {
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

// rewriteTree reads a tar stream that somebody uploaded and writes it again below target, letting
// through only what a plain tree is made of: directories, regular files, and symbolic links that
// stay inside. Owner becomes root; mode and time are kept.
func rewriteTree(in io.Reader, out io.Writer, target string) error {
	r, w := tar.NewReader(in), tar.NewWriter(out)
	root := strings.TrimPrefix(path.Clean(target), "/")
	var total int64
	for n := 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err != nil {
			return copyFailed("the tree is not a tar stream: %v", err)
		}
		if total += h.Size; n >= maxTreeEntries || total > maxTreeBytes {
			return copyFailed("the tree has more than %d entries or %d bytes", maxTreeEntries, int64(maxTreeBytes))
		}
		entry, err := plainEntry(h, root)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(entry); err != nil {
			return copyFailed("%s: %v", h.Name, err)
		}
		if _, err := io.Copy(w, r); errors.Is(err, io.ErrUnexpectedEOF) {
			return copyFailed("the tree ends in the middle of %.200q", h.Name)
		} else if err != nil {
			return err
		}
	}
}

// plainEntry is the header that an entry gets below root.
func plainEntry(h *tar.Header, root string) (*tar.Header, error) {
	name := path.Clean(h.Name)
	if path.IsAbs(h.Name) || name == ".." || strings.HasPrefix(name, "../") || strings.ContainsRune(h.Name, 0) {
		return nil, copyFailed("entry %.200q leads out of the tree", h.Name)
	}
	e := &tar.Header{
		Typeflag: h.Typeflag, Name: path.Join(root, name), Mode: h.Mode & 0o7777, ModTime: h.ModTime, Format: tar.FormatPAX,
	}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Size = h.Size
	case tar.TypeDir:
		e.Name += "/"
	case tar.TypeSymlink:
		leads := path.Join(path.Dir(name), h.Linkname)
		if path.IsAbs(h.Linkname) || leads == ".." || strings.HasPrefix(leads, "../") {
			return nil, copyFailed("link %.200q leads out of the tree, to %.200q", h.Name, h.Linkname)
		}
		e.Linkname = h.Linkname
	default:
		return nil, copyFailed("entry %.200q is neither a directory, a file nor a symbolic link", h.Name)
	}
	return e, nil
}
