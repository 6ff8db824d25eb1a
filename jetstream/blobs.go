package jetstream

import (
	"context"
	"encoding/base64"
	"encoding/json"
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
	// From the leader: the object store's own reads may be answered by a replica that is behind.
	subject := "$O." + protocol.BucketBlobs + ".M." + base64.URLEncoding.EncodeToString([]byte(digest))
	m, err := c.lastOnSubject(ctx, "OBJ_"+protocol.BucketBlobs, subject)
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(m.data, &info); err != nil {
		return false, protocol.Errorf(protocol.Internal, "", "look for %s: %v", digest, err)
	}
	return !info.Deleted, nil
}

// Blob opens stored content; the caller closes it. The store checks the content against its own
// digest while it is read. Error: not_found.
func (c *Conn) Blob(ctx context.Context, digest string) (io.ReadCloser, error) {
	store, err := c.blobs(ctx)
	if err != nil {
		return nil, err
	}
	for {
		r, err := store.Get(ctx, digest)
		if err == nil {
			return r, nil
		}
		if !errors.Is(err, jetstream.ErrObjectNotFound) {
			return nil, translate(err, "read "+digest)
		}
		// It may only not be on the replica yet that answered.
		there, hasErr := c.HasBlob(ctx, digest)
		if hasErr != nil {
			return nil, hasErr
		}
		if !there || !sleep(ctx, retryPause) {
			return nil, translate(err, "read "+digest)
		}
	}
}

func (c *Conn) blobs(ctx context.Context) (jetstream.ObjectStore, error) {
	bounded, cancel := c.bound(ctx)
	defer cancel()
	store, err := c.js.ObjectStore(bounded, protocol.BucketBlobs)
	return store, translate(err, "open "+protocol.BucketBlobs)
}
