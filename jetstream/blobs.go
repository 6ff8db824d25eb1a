package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

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
	return b.putBlobAs(ctx, tenant, digest, nuid.Next(), r)
}

// putBlobAs is like PutBlob, but the caller chooses the id of the stored object, which must be unique.
func (b *BlobStore) putBlobAs(ctx context.Context, tenant, digest, id string, r io.Reader) error {
	// Storing the content again would remove the chunks that other clients are reading.
	if fresh, err := b.FreshBlob(ctx, tenant, digest); fresh || err != nil {
		return err
	}
	return b.storeBlob(ctx, tenant, digest, id, r)
}

// storeBlob stores content as an object with an id. It replaces a stored copy with the same digest that is no longer
// fresh.
func (b *BlobStore) storeBlob(ctx context.Context, tenant, digest, id string, r io.Reader) error {
	name := blobName(tenant, digest)
	old, sequence, err := b.objects.objectAt(ctx, protocol.BucketBlobs, name)
	if err != nil {
		return err
	}
	err = b.objects.putObjectAs(ctx, protocol.BucketBlobs, name, id, sequence, r)
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
	complete, err := b.entries(ctx)
	if err != nil {
		return err
	}
	return b.eachUnfinished(ctx, complete, func(id string, _ uint64, last *stored) error {
		if !b.hasAge(last.time, age) {
			return nil
		}
		return b.objects.purgeChunks(protocol.BucketBlobs, id)
	})
}

// UnfinishedUpload is an upload that has chunks but no entry: it is in progress, or it was interrupted.
type UnfinishedUpload struct {
	Tenant, Digest string
	ID             string // id of the object that the upload would become
	Bytes          int64  // upper bound of the stored bytes, at most one chunk too high
}

// UnfinishedUploads returns the unfinished uploads. complete has the ids of stored objects; it may lack some.
func (b *BlobStore) UnfinishedUploads(ctx context.Context, complete map[string]bool) ([]UnfinishedUpload, error) {
	var all []UnfinishedUpload
	err := b.eachUnfinished(ctx, complete, func(id string, chunks uint64, last *stored) error {
		tenant, digest := splitBlobName(last.header.Get(headerObject))
		all = append(all, UnfinishedUpload{Tenant: tenant, Digest: digest, ID: id, Bytes: int64(chunks) * blobChunk})
		return nil
	})
	return all, err
}

// HasChunks reports whether any chunk of an upload is stored.
func (b *BlobStore) HasChunks(ctx context.Context, id string) (bool, error) {
	_, err := b.lastOnSubject(ctx, "OBJ_"+protocol.BucketBlobs, chunkSubject(protocol.BucketBlobs, id))
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil
	}
	return err == nil, err
}

// entries returns the ids of the stored objects.
func (b *BlobStore) entries(ctx context.Context) (map[string]bool, error) {
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
	complete := make(map[string]bool, len(ids))
	for _, id := range ids {
		complete[id] = true
	}
	return complete, err
}

// eachUnfinished visits the unfinished uploads, with the number of their chunks and the last chunk.
func (b *BlobStore) eachUnfinished(ctx context.Context, complete map[string]bool,
	visit func(id string, chunks uint64, last *stored) error,
) error {
	return b.objects.eachPart(ctx, protocol.BucketBlobs, complete, func(id string, chunks uint64, last *stored) error {
		name := last.header.Get(headerObject)
		if name == "" {
			return nil // an earlier version stored this chunk without the name of its object; the chunk expires
		}
		info, err := b.objects.objectInfo(ctx, protocol.BucketBlobs, name) // the scanned replica may be behind
		if err != nil || info != nil && info.NUID == id {
			return err
		}
		return visit(id, chunks, last)
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

// splitBlobName returns the tenant and the digest in the name of an upload.
func splitBlobName(name string) (tenant, digest string) {
	tenant, digest, owned := strings.Cut(name, "/")
	if !owned { // stored by an older version, which had no tenants here
		return protocol.DefaultTenant, name
	}
	return tenant, digest
}
