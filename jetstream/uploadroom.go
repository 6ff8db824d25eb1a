package jetstream

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// UploadRoom limits one upload.
type UploadRoom interface {
	// Grow is called before the upload grows to this many bytes, and again with the final size before the upload is
	// stored. If Grow fails, the upload fails with the same error.
	Grow(ctx context.Context, bytes int64) error
	// Leave is called at the end, when the upload is stored or its chunks are removed.
	Leave(ctx context.Context)
}

// metered reads content, and calls its [UploadRoom] as the size grows.
type metered struct {
	ctx  context.Context // context of the upload; the method Read cannot take a ctx
	r    io.Reader
	room UploadRoom
	size int64
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.size += int64(n)
	if err != nil && err != io.EOF {
		return n, err
	}
	if refused := m.room.Grow(m.ctx, m.size); refused != nil {
		return 0, refused
	}
	return n, err
}

// StoredUpload is the entry of an upload.
type StoredUpload struct {
	Tenant, Digest string
	ID             string // id of the stored object
	Bytes          int64
	At             time.Time // when it was stored
	Removed        bool
}

// FollowUploads calls handle with the entry of each stored upload, and then with each change, until ctx ends. Uploads
// that expire are not reported. caughtUp is called once, after the entries of all uploads that were stored at the
// start.
func (b *BlobStore) FollowUploads(ctx context.Context, handle func(StoredUpload), caughtUp func()) error {
	filter := "$O." + protocol.BucketBlobs + ".M.>"
	return b.follow(ctx, "OBJ_"+protocol.BucketBlobs, filter, 1, func(m *stored) {
		info := &jetstream.ObjectInfo{}
		if err := json.Unmarshal(m.data, info); err != nil {
			b.log.Warn("could not decode the entry of an upload; the upload counts in no quota", "error", err)
			return
		}
		tenant, digest := splitBlobName(info.Name)
		handle(StoredUpload{Tenant: tenant, Digest: digest, ID: info.NUID, Bytes: int64(info.Size), At: m.time,
			Removed: info.Deleted})
	}, caughtUp)
}
