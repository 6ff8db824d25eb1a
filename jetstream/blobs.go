package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// BlobStore stores uploads under their tenants and digests until they expire. A tenant that knows the digest of another
// tenant's upload cannot read it.
type BlobStore struct {
	*streams

	objects *objectStore
}

// PutBlob stores content under its digest, unless content with this digest is already stored and fresh, see
// [BlobStore.FreshBlob].
func (b *BlobStore) PutBlob(ctx context.Context, tenant, digest string, r io.Reader) error {
	// Storing the content again would remove the chunks that other clients are reading.
	if fresh, err := b.FreshBlob(ctx, tenant, digest); fresh || err != nil {
		return err
	}
	return b.storeBlob(ctx, tenant, digest, r)
}

// storeBlob stores content. It replaces a stored copy with the same digest that is no longer fresh.
func (b *BlobStore) storeBlob(ctx context.Context, tenant, digest string, r io.Reader) error {
	name := blobName(tenant, digest)
	old, sequence, err := b.objects.objectAt(ctx, protocol.BucketBlobs, name)
	if err != nil {
		return err
	}
	err = b.objects.putObject(ctx, protocol.BucketBlobs, name, sequence, r)
	if errors.Is(err, ErrConflict) { // another upload of the same content was faster, or the old content expired
		fresh, failed := b.FreshBlob(ctx, tenant, digest)
		if failed == nil && !fresh {
			failed = protocol.Errorf(protocol.Unavailable, "",
				"the content expired while it was stored again: upload it again")
		}
		return failed
	}
	if err != nil {
		return err
	}
	if old != nil {
		return b.objects.purgeChunks(protocol.BucketBlobs, old.NUID)
	}
	return nil
}

// FreshBlob reports whether content with this digest is stored and has more than half of its life left, enough time for
// the caller to use it.
func (b *BlobStore) FreshBlob(ctx context.Context, tenant, digest string) (bool, error) {
	info, err := b.objects.objectInfo(ctx, protocol.BucketBlobs, blobName(tenant, digest))
	if err != nil || info == nil {
		return false, err
	}
	life, err := b.BlobLife(ctx)
	return life == 0 || b.Now().Sub(info.ModTime) < life/2, err
}

// BlobLife returns how long content is stored; 0 means forever.
func (b *BlobStore) BlobLife(ctx context.Context) (time.Duration, error) {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	store, err := b.js.ObjectStore(ctx, protocol.BucketBlobs)
	if err != nil {
		return 0, translate(err, "open "+protocol.BucketBlobs)
	}
	status, err := store.Status(ctx)
	if err != nil {
		return 0, translate(err, "read how long uploads are stored")
	}
	return status.TTL(), nil
}

// RenewBlob restarts the life of stored content that is no longer fresh, by storing the content again.
func (b *BlobStore) RenewBlob(ctx context.Context, tenant, digest string) error {
	fresh, err := b.FreshBlob(ctx, tenant, digest)
	if err != nil || fresh {
		return err
	}
	content, err := b.objects.openObject(ctx, protocol.BucketBlobs, blobName(tenant, digest))
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil // the content was never stored, or has expired
	}
	if err != nil {
		return err
	}
	defer content.Close()
	return b.PutBlob(ctx, tenant, digest, content)
}

// RemoveUploadParts removes the chunks of interrupted uploads. An upload counts as interrupted if no object refers to
// its chunks and its last chunk is older than age. Callers normally pass [UploadPartsAge].
func (b *BlobStore) RemoveUploadParts(ctx context.Context, age time.Duration) error {
	ids := map[string]string{} // the ids of stored objects, by the subject of the entry
	entries := "$O." + protocol.BucketBlobs + ".M.*"
	err := b.scan(ctx, "OBJ_"+protocol.BucketBlobs, entries, 1, func(m *stored) (bool, error) {
		info := &jetstream.ObjectInfo{}
		if err := json.Unmarshal(m.data, info); err != nil {
			b.log.Error("could not decode the entry of an upload", "subject", m.subject, "error", err)
			return true, nil
		}
		ids[m.subject] = info.NUID
		return true, nil
	})
	if err != nil {
		return err
	}
	complete := map[string]bool{}
	for _, id := range ids {
		complete[id] = true
	}
	return b.objects.removeParts(ctx, protocol.BucketBlobs, complete, age, func(id string, last *stored) (bool, error) {
		name := last.header.Get(headerObject)
		if name == "" {
			return false, nil // an earlier version stored this chunk without the name of its object; the chunk expires
		}
		info, err := b.objects.objectInfo(ctx, protocol.BucketBlobs, name) // the scanned replica may be behind
		return info == nil || info.NUID != id, err
	})
}

// HasBlob reports whether content with this digest is stored.
func (b *BlobStore) HasBlob(ctx context.Context, tenant, digest string) (bool, error) {
	info, err := b.objects.objectInfo(ctx, protocol.BucketBlobs, blobName(tenant, digest))
	return info != nil, err
}

// Blob opens stored content; the caller closes it. Reads verify the content by the digest in the object's entry. Error:
// not_found. A read fails with unavailable if the content is removed before the read has finished.
func (b *BlobStore) Blob(ctx context.Context, tenant, digest string) (io.ReadCloser, error) {
	content, err := b.objects.openObject(ctx, protocol.BucketBlobs, blobName(tenant, digest))
	if protocol.CodeOf(err) == protocol.NotFound && tenant == protocol.DefaultTenant {
		// Clients of the previous version stored uploads without a tenant. Only the default tenant may read these
		// uploads. Otherwise a tenant that learns a digest could read another tenant's upload.
		return b.objects.openObject(ctx, protocol.BucketBlobs, digest)
	}
	return content, err
}

func blobName(tenant, digest string) string { return tenant + "/" + digest }
