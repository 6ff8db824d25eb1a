package treecopy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/treetar"
)

// Engine is the part of the Docker Engine that this package needs. CopyTo unpacks a tar stream below a directory of a
// container. PathMode inspects a path in a container.
type Engine interface {
	CopyTo(ctx context.Context, container, dir string, tar io.Reader) error
	PathMode(ctx context.Context, container, path string) (mode fs.FileMode, exists bool, err error)
}

// Uploads opens a tenant's uploaded tree by its digest.
type Uploads interface {
	Blob(ctx context.Context, tenant, digest string) (io.ReadCloser, error)
}

// Disk watches copies that write to the host's disk. The caller of Copy also writes the copied bytes to counter, which
// counts them. If a copy fills the disk, Disk cancels the context that Copy returned, with a *protocol.Error as the
// cause.
type Disk interface {
	Copy(ctx context.Context, k protocol.SandboxKey) (_ context.Context, counter io.Writer, done func())
}

// Copier copies uploaded trees into containers.
type Copier struct {
	Engine  Engine
	Uploads Uploads
	Disk    Disk
}

// Container is the container into which trees are copied. It must not have started yet.
type Container struct {
	ID      string
	Sandbox protocol.SandboxKey
	Service string   // "": the primary container
	Mounted []string // paths at which something is mounted; the container could not see files that are copied there
}

// Copy copies the trees that a spec has for a container. If a tree is missing or refused, the error has the code
// failed_precondition or invalid_argument and the reason copy_failed. Otherwise, the error comes from the engine, the
// store or the disk. Every error names the field of the tree.
func (c Copier) Copy(ctx context.Context, to Container, copies []protocol.Copy) error {
	for i, tree := range copies {
		if tree.Service != to.Service {
			continue
		}
		if err := c.copyTree(ctx, to, tree); err != nil {
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
func (c Copier) copyTree(ctx context.Context, to Container, tree protocol.Copy) error {
	target, err := c.target(ctx, to, tree)
	if err != nil {
		return err
	}
	ctx, copied, done := c.Disk.Copy(ctx, to.Sandbox)
	defer done()
	blob, err := c.Uploads.Blob(ctx, to.Sandbox.Tenant, tree.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	r, w := io.Pipe()
	rewritten := make(chan error, 1)
	go func() {
		err := rewrite(blob, copied, w, target, tree.Digest)
		w.CloseWithError(err)
		rewritten <- err
	}()
	copyErr := c.Engine.CopyTo(ctx, to.ID, "/", r)
	_ = r.CloseWithError(errors.New("the engine stopped reading")) // unblocks rewrite; always returns nil
	err = <-rewritten
	if stopped := new(protocol.Error); errors.As(context.Cause(ctx), &stopped) {
		return stopped
	}
	if err != nil && protocol.AsError(err).Reason == protocol.ReasonCopyFailed {
		return err
	}
	return copyErr
}

// rewrite rewrites an upload for the engine and checks its digest. All bytes that it reads also go to the writer
// copied.
func rewrite(upload io.Reader, copied, out io.Writer, target treetar.Target, digest string) error {
	sum := sha256.New()
	stored := &storedTree{r: upload}
	source := io.TeeReader(stored, io.MultiWriter(sum, copied))
	err := treetar.Rewrite(source, out, target)
	if err == nil {
		_, err = io.Copy(io.Discard, source) // the digest covers the padding, too
	}
	if stored.err != nil { // the store failed, so the tree may be valid
		err = protocol.Errorf(protocol.Unavailable, "", "read the uploaded tree: %v", stored.err)
	}
	if err == nil && "sha256-"+hex.EncodeToString(sum.Sum(nil)) != digest {
		err = refuse("the upload does not match its digest %s", digest)
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

func refuse(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.InvalidArgument, protocol.ReasonCopyFailed, format, args...)
}

// target returns the target of a tree, with the directories of its path that do not exist in the container.
func (c Copier) target(ctx context.Context, to Container, tree protocol.Copy) (t treetar.Target, err error) {
	uid, gid, ok := tree.Owners()
	if !ok {
		return t, refuse("%.40q is not an owner", tree.Owner) // cannot happen: the coordinator has validated the spec
	}
	t = treetar.Target{
		Root: strings.TrimPrefix(path.Clean(tree.Target), "/"), UID: uid, GID: gid, Mounted: to.Mounted,
		MaxEntries: protocol.MaxTreeEntries, MaxBytes: int64(protocol.MaxTreeBytes),
	}
	var outerFirst []string
	for dir := t.Root; dir != "."; dir = path.Dir(dir) {
		outerFirst = append([]string{dir}, outerFirst...)
	}
	for i, dir := range outerFirst {
		mode, exists, err := c.Engine.PathMode(ctx, to.ID, "/"+dir)
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
