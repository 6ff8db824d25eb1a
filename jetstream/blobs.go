package jetstream

import (
	"context"
	"io"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// PutBlob stores content under its digest, unless it is already stored and fresh.
func (c *Conn) PutBlob(ctx context.Context, digest string, r io.Reader) error {
	// Storing it again would remove the chunks that others are reading.
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

// FreshBlob reports whether content with this digest is stored and less than half of its life is over, so that a
// caller that finds it now has time to use it.
func (c *Conn) FreshBlob(ctx context.Context, digest string) (bool, error) {
	info, err := c.objectInfo(ctx, protocol.BucketBlobs, digest)
	if err != nil || info == nil {
		return false, err
	}
	life, err := c.BlobLife(ctx)
	return life == 0 || c.Now().Sub(info.ModTime) < life/2, err
}

// BlobLife returns how long content is stored; 0: forever.
func (c *Conn) BlobLife(ctx context.Context) (time.Duration, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	store, err := c.js.ObjectStore(ctx, protocol.BucketBlobs)
	if err != nil {
		return 0, translate(err, "open "+protocol.BucketBlobs)
	}
	status, err := store.Status(ctx)
	if err != nil {
		return 0, translate(err, "read how long uploads are stored")
	}
	return status.TTL(), nil
}

// RenewBlob restarts the life of stored content that is no longer fresh, by storing it again.
func (c *Conn) RenewBlob(ctx context.Context, digest string) error {
	fresh, err := c.FreshBlob(ctx, digest)
	if err != nil || fresh {
		return err
	}
	content, err := c.Blob(ctx, digest)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil // it was never stored, or has expired
	}
	if err != nil {
		return err
	}
	defer content.Close()
	return c.PutBlob(ctx, digest, content)
}

// HasBlob reports whether content with this digest is stored.
func (c *Conn) HasBlob(ctx context.Context, digest string) (bool, error) {
	info, err := c.objectInfo(ctx, protocol.BucketBlobs, digest)
	return info != nil, err
}

// Blob opens stored content, which the caller closes. Reads verify the store's own digest. Error: not_found.
// A read fails with unavailable if the content is removed meanwhile.
func (c *Conn) Blob(ctx context.Context, digest string) (io.ReadCloser, error) {
	return c.openObject(ctx, protocol.BucketBlobs, digest)
}
