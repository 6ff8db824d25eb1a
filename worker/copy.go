package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/treetar"
)

// copyTrees copies the uploaded trees that a spec has for one service, or for the primary container if service is "",
// into that service's container, which has not started yet. mounted are the paths at which something is mounted in
// the container: a copy could not be seen there.
func (s *sandbox) copyTrees(
	ctx context.Context, container, service string, copies []protocol.Copy, mounted []string,
) error {
	for i, c := range copies {
		if c.Service != service {
			continue
		}
		if err := s.copyTree(ctx, container, c, mounted); err != nil {
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

// copyTree streams one uploaded tree through treetar into a container.
func (s *sandbox) copyTree(ctx context.Context, container string, c protocol.Copy, mounted []string) error {
	target, err := s.copyTarget(ctx, container, c)
	if err != nil {
		return err
	}
	target.Mounted = mounted
	ctx, copied, done := s.w.disk.Copy(ctx, s.key)
	defer done()
	blob, err := s.w.conn.Blob(ctx, c.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	r, w := io.Pipe()
	rewritten := make(chan error, 1)
	go func() {
		err := rewriteUpload(blob, copied, w, target, c.Digest)
		w.CloseWithError(err)
		rewritten <- err
	}()
	copyErr := s.w.engine.CopyTo(ctx, container, "/", r)
	_ = r.CloseWithError(errors.New("the engine stopped reading")) // unblocks the writing side
	err = <-rewritten
	if stopped := new(protocol.Error); errors.As(context.Cause(ctx), &stopped) {
		return stopped
	}
	if err != nil && protocol.AsError(err).Reason == protocol.ReasonCopyFailed {
		return err
	}
	return copyErr
}

// rewriteUpload rewrites an upload for the engine and checks its digest. It writes what it reads to copied as well.
func rewriteUpload(upload io.Reader, copied, out io.Writer, target treetar.Target, digest string) error {
	sum := sha256.New()
	stored := &storedTree{r: upload}
	source := io.TeeReader(stored, io.MultiWriter(sum, copied))
	err := treetar.Rewrite(source, out, target)
	if err == nil {
		_, err = io.Copy(io.Discard, source) // the digest covers the padding, too
	}
	if stored.err != nil { // the store failed; the tree may be fine
		err = protocol.Errorf(protocol.Unavailable, "", "read the uploaded tree: %v", stored.err)
	}
	if err == nil && "sha256-"+hex.EncodeToString(sum.Sum(nil)) != digest {
		err = copyFailed("the upload does not match its digest %s", digest)
	}
	return err
}

// storedTree reads an upload and remembers whether the store failed.
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

// copyTarget finds out which directories of a copy's target are missing in the container.
func (s *sandbox) copyTarget(ctx context.Context, container string, c protocol.Copy) (t treetar.Target, err error) {
	uid, gid, ok := c.Owners()
	if !ok {
		return t, copyFailed("%.40q is not an owner", c.Owner) // validated
	}
	t = treetar.Target{UID: uid, GID: gid, MaxEntries: protocol.MaxTreeEntries, MaxBytes: int64(protocol.MaxTreeBytes)}
	t.Root = strings.TrimPrefix(path.Clean(c.Target), "/")
	var outerFirst []string
	for dir := t.Root; dir != "."; dir = path.Dir(dir) {
		outerFirst = append([]string{dir}, outerFirst...)
	}
	for i, dir := range outerFirst {
		mode, exists, err := s.w.engine.PathMode(ctx, container, "/"+dir)
		if err != nil {
			return t, err
		}
		if !exists {
			t.Missing = outerFirst[i:]
			break
		}
		if mode.IsRegular() && dir != t.Root {
			return t, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCopyFailed,
				"/%s is a file, so /%s cannot be created below it", dir, t.Root)
		}
	}
	return t, nil
}
