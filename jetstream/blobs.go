package jetstream

import (
	"context"
	"errors"
	"io"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// PutBlob stores content under its digest, unless it is there already.
func (c *Conn) PutBlob(ctx context.Context, digest string, r io.Reader) error {
	store, err := c.blobs(ctx)
	if err != nil {
		return err
	}
	// Putting it again would take the chunks away from those who are reading them.
	if there, err := c.HasBlob(ctx, digest); there || err != nil {
		return err
	}
	_, err = store.Put(ctx, jetstream.ObjectMeta{Name: digest}, r)
	return translate(err, "upload "+digest)
}

// HasBlob says whether content with this digest is stored.
func (c *Conn) HasBlob(ctx context.Context, digest string) (bool, error) {
	store, err := c.blobs(ctx)
	if err != nil {
		return false, err
	}
	_, err = store.GetInfo(ctx, digest)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return false, nil
	}
	return err == nil, translate(err, "look for "+digest)
}

// Blob opens stored content; the caller closes it. The store checks the content against its own
// digest while it is read. Error: not_found.
func (c *Conn) Blob(ctx context.Context, digest string) (io.ReadCloser, error) {
	store, err := c.blobs(ctx)
	if err != nil {
		return nil, err
	}
	r, err := store.Get(ctx, digest)
	if err != nil {
		return nil, translate(err, "read "+digest)
	}
	return r, nil
}

func (c *Conn) blobs(ctx context.Context) (jetstream.ObjectStore, error) {
	bounded, cancel := c.bound(ctx)
	defer cancel()
	store, err := c.js.ObjectStore(bounded, protocol.BucketBlobs)
	return store, translate(err, "open "+protocol.BucketBlobs)
}
