package jetstream

import (
	"context"
	"io"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// PutBlob stores content under its digest, unless it is there already and will be for a while.
func (c *Conn) PutBlob(ctx context.Context, digest string, r io.Reader) error {
	// Putting it again would take the chunks away from those who are reading them.
	if fresh, err := c.FreshBlob(ctx, digest); fresh || err != nil {
		return err
	}
	old, err := c.objectInfo(ctx, protocol.BucketBlobs, digest)
	if err != nil {
		return err
	}
	if err := c.putObject(ctx, protocol.BucketBlobs, digest, r); err != nil {
		return err
	}
	if old != nil {
		return c.purgeChunks(protocol.BucketBlobs, old.NUID)
	}
	return nil
}

// FreshBlob says whether content with this digest is stored, and not so old that it may be removed
// before somebody who has just found it has used it: its life is less than half over.
func (c *Conn) FreshBlob(ctx context.Context, digest string) (bool, error) {
	info, err := c.objectInfo(ctx, protocol.BucketBlobs, digest)
	if err != nil || info == nil {
		return false, err
	}
	life, err := c.BlobLife(ctx)
	return life == 0 || c.Now().Sub(info.ModTime) < life/2, err
}

// BlobLife is how long content is kept after it was stored; 0: for ever.
func (c *Conn) BlobLife(ctx context.Context) (time.Duration, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	store, err := c.js.ObjectStore(ctx, protocol.BucketBlobs)
	if err != nil {
		return 0, translate(err, "open "+protocol.BucketBlobs)
	}
	status, err := store.Status(ctx)
	if err != nil {
		return 0, translate(err, "ask how long uploads are kept")
	}
	return status.TTL(), nil
}

// RenewBlob stores content again that is there and no longer fresh, so that its life begins again.
func (c *Conn) RenewBlob(ctx context.Context, digest string) error {
	fresh, err := c.FreshBlob(ctx, digest)
	if err != nil || fresh {
		return err
	}
	content, err := c.Blob(ctx, digest)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil // it was never stored, or is over
	}
	if err != nil {
		return err
	}
	defer content.Close()
	return c.PutBlob(ctx, digest, content)
}

// HasBlob says whether content with this digest is stored.
func (c *Conn) HasBlob(ctx context.Context, digest string) (bool, error) {
	info, err := c.objectInfo(ctx, protocol.BucketBlobs, digest)
	return info != nil, err
}

// Blob opens stored content; the caller closes it. What is read is checked against the store's own
// digest. Error: not_found; and while it is read unavailable, where it was removed meanwhile.
func (c *Conn) Blob(ctx context.Context, digest string) (io.ReadCloser, error) {
	return c.openObject(ctx, protocol.BucketBlobs, digest)
}
