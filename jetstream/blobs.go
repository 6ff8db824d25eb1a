package jetstream

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/boxfleet/boxfleet/protocol"
)

// PutBlob stores content under its digest, unless it is there already and will be for a while.
func (c *Conn) PutBlob(ctx context.Context, digest string, r io.Reader) error {
	store, err := c.blobs(ctx)
	if err != nil {
		return err
	}
	// Putting it again would take the chunks away from those who are reading them.
	if fresh, err := c.FreshBlob(ctx, digest); fresh || err != nil {
		return err
	}
	bounded, cancel := c.bound(ctx)
	defer cancel()
	old, err := store.GetInfo(bounded, digest)
	if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		return translate(err, "upload "+digest)
	}
	if err := c.putObject(ctx, protocol.BucketBlobs, digest, r); err != nil {
		return err
	}
	if old != nil {
		return c.purgeChunks(protocol.BucketBlobs, old.NUID)
	}
	return nil
}

// putObject stores content in a bucket of the object store.
func (c *Conn) putObject(ctx context.Context, bucket, digest string, r io.Reader) error {
	u := &upload{conn: c, bucket: bucket, id: nuid.Next()}
	if err := u.run(ctx, digest, r); err != nil {
		return errors.Join(translate(err, "upload "+digest), c.purgeChunks(bucket, u.id))
	}
	return nil
}

// upload writes an object as the object store does, but with few chunks on their way at once: the
// store's own Put sends as fast as it can, and fails when a server stores less fast than that.
type upload struct {
	conn    *Conn
	bucket  string
	id      string // of the object: its chunks carry it in their subject
	pending []jetstream.PubAckFuture
}

const (
	blobChunk  = 128 << 10
	blobWindow = 32 // chunks on their way
)

func (u *upload) run(ctx context.Context, digest string, r io.Reader) error {
	sum := sha256.New()
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: digest, Opts: &jetstream.ObjectMetaOptions{ChunkSize: blobChunk}},
		Bucket:     u.bucket, NUID: u.id,
	}
	for {
		chunk := make([]byte, blobChunk)
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			sum.Write(chunk[:n])
			info.Size, info.Chunks = info.Size+uint64(n), info.Chunks+1
			if err := u.send(ctx, &nats.Msg{Subject: chunkSubject(u.bucket, u.id), Data: chunk[:n]}, blobWindow); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := u.settle(ctx, 0); err != nil { // before anybody finds it
		return err
	}
	info.Digest = "SHA-256=" + base64.URLEncoding.EncodeToString(sum.Sum(nil))
	data, err := json.Marshal(info)
	if err != nil {
		return err
	}
	meta := nats.NewMsg(metaSubject(u.bucket, digest))
	meta.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	meta.Data = data
	return u.send(ctx, meta, 0)
}

// send publishes a message, and waits until at most so many are on their way.
func (u *upload) send(ctx context.Context, m *nats.Msg, most int) error {
	ack, err := u.conn.js.PublishMsgAsync(m)
	if err != nil {
		return err
	}
	u.pending = append(u.pending, ack)
	return u.settle(ctx, most)
}

func (u *upload) settle(ctx context.Context, most int) error {
	for len(u.pending) > most {
		bounded, cancel := u.conn.bound(ctx)
		var err error
		select {
		case <-u.pending[0].Ok():
		case err = <-u.pending[0].Err():
		case <-bounded.Done():
			err = bounded.Err()
		}
		cancel()
		if err != nil {
			return err
		}
		u.pending = u.pending[1:]
	}
	return nil
}

// purgeChunks removes what was stored of an object. What stays goes by age.
func (c *Conn) purgeChunks(bucket, id string) error {
	ctx, cancel := c.bound(context.Background())
	defer cancel()
	stream, err := c.js.Stream(ctx, "OBJ_"+bucket)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(chunkSubject(bucket, id)))
	}
	return translate(err, "remove what was uploaded")
}

func chunkSubject(bucket, id string) string { return "$O." + bucket + ".C." + id }

func metaSubject(bucket, digest string) string {
	return "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(digest))
}

// FreshBlob says whether content with this digest is stored, and not so old that it may be removed
// before somebody who has just found it has used it: its life is less than half over.
func (c *Conn) FreshBlob(ctx context.Context, digest string) (bool, error) {
	stored, err := c.blobStored(ctx, digest)
	if err != nil || stored.IsZero() {
		return false, err
	}
	life, err := c.BlobLife(ctx)
	return life == 0 || time.Since(stored) < life/2, err
}

// BlobLife is how long content is kept after it was stored; 0: for ever.
func (c *Conn) BlobLife(ctx context.Context) (time.Duration, error) {
	store, err := c.blobs(ctx)
	if err != nil {
		return 0, err
	}
	bounded, cancel := c.bound(ctx)
	defer cancel()
	status, err := store.Status(bounded)
	if err != nil {
		return 0, translate(err, "ask how long uploads are kept")
	}
	return status.TTL(), nil
}

// RenewBlob stores content anew that is there and not fresh any more, so that its life begins again.
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
	stored, err := c.blobStored(ctx, digest)
	return !stored.IsZero(), err
}

func (c *Conn) blobStored(ctx context.Context, digest string) (time.Time, error) {
	return c.objectStored(ctx, protocol.BucketBlobs, digest)
}

// objectStored says when content was stored, by the server's clock; the zero time for what is not there.
func (c *Conn) objectStored(ctx context.Context, bucket, digest string) (time.Time, error) {
	// From the leader: the object store's own reads may be answered by a replica that is behind.
	m, err := c.lastOnSubject(ctx, "OBJ_"+bucket, metaSubject(bucket, digest))
	if protocol.CodeOf(err) == protocol.NotFound {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(m.data, &info); err != nil {
		return time.Time{}, protocol.Errorf(protocol.Internal, "", "look for %s: %v", digest, err)
	}
	if info.Deleted {
		return time.Time{}, nil
	}
	return m.time, nil
}

// Blob opens stored content; the caller closes it. The store checks the content against its own
// digest while it is read. Error: not_found.
func (c *Conn) Blob(ctx context.Context, digest string) (io.ReadCloser, error) {
	return c.object(ctx, protocol.BucketBlobs, digest)
}

func (c *Conn) object(ctx context.Context, bucket, digest string) (io.ReadCloser, error) {
	store, err := c.objects(ctx, bucket)
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
		stored, hasErr := c.objectStored(ctx, bucket, digest)
		if hasErr != nil {
			return nil, hasErr
		}
		if stored.IsZero() || !sleep(ctx, retryPause) {
			return nil, translate(err, "read "+digest)
		}
	}
}

func (c *Conn) blobs(ctx context.Context) (jetstream.ObjectStore, error) {
	return c.objects(ctx, protocol.BucketBlobs)
}

func (c *Conn) objects(ctx context.Context, bucket string) (jetstream.ObjectStore, error) {
	bounded, cancel := c.bound(ctx)
	defer cancel()
	store, err := c.js.ObjectStore(bounded, bucket)
	return store, translate(err, "open "+bucket)
}
