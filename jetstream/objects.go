package jetstream

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/boxfleet/boxfleet/protocol"
)

// Boxfleet reads and writes objects in the format of NATS's object store, so that NATS's tools can be used. Boxfleet
// does not use the client's functions for objects. These functions send chunks as fast as they can and fail if a server
// is slower. They also stop reading too early if a replica is behind.

// objectStore reads and writes the objects of an object store.
type objectStore struct{ *streams }

// objectInfo reads an object's entry from the leader, because a replica may be behind. It returns nil if the object is
// not stored. The entry's ModTime is the time at which the entry was stored, by the server's clock.
func (ob *objectStore) objectInfo(ctx context.Context, bucket, name string) (*jetstream.ObjectInfo, error) {
	info, _, err := ob.objectAt(ctx, bucket, name)
	return info, err
}

// objectAt is like objectInfo, but also returns the entry's sequence.
func (ob *objectStore) objectAt(ctx context.Context, bucket, name string) (*jetstream.ObjectInfo, uint64, error) {
	m, err := ob.lastOnSubject(ctx, "OBJ_"+bucket, metaSubject(bucket, name))
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	info := &jetstream.ObjectInfo{}
	if err := json.Unmarshal(m.data, info); err != nil {
		return nil, 0, protocol.Errorf(protocol.Internal, "", "read the entry of %s: %v", name, err)
	}
	if info.Deleted {
		return nil, 0, nil
	}
	info.ModTime = m.time
	return info, m.sequence, nil
}

// objectMeta returns the message that replaces an object's entry.
func objectMeta(info jetstream.ObjectInfo) (*nats.Msg, error) {
	info.ModTime = time.Time{} // readers use the time at which the message was stored
	data, err := json.Marshal(info)
	m := nats.NewMsg(metaSubject(info.Bucket, info.Name))
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	m.Data = data
	return m, err
}

// renewObject writes an object's entry again, without its content, so that its age starts from zero. Error:
// [ErrConflict] if the entry has changed.
func (ob *objectStore) renewObject(ctx context.Context, info *jetstream.ObjectInfo, expected uint64) error {
	m, err := objectMeta(*info)
	if err == nil {
		_, err = ob.publish(ctx, m, int64(expected))
	}
	return translate(err, "renew "+info.Name)
}

// removeObject removes an object. Error: [ErrConflict] if the object was stored again in the meantime.
func (ob *objectStore) removeObject(ctx context.Context, info *jetstream.ObjectInfo, expected uint64) error {
	gone := *info
	gone.Deleted, gone.Size, gone.Chunks, gone.Digest = true, 0, 0, ""
	m, err := objectMeta(gone)
	if err == nil {
		_, err = ob.publish(ctx, m, int64(expected))
	}
	if err != nil {
		return translate(err, "remove "+info.Name)
	}
	return ob.purgeChunks(info.Bucket, info.NUID)
}

// putObject stores content in a bucket of the object store.
func (ob *objectStore) putObject(ctx context.Context, bucket, name string, r io.Reader) error {
	return ob.putObjectAs(ctx, bucket, name, nuid.Next(), r)
}

// putObjectAs is like putObject, but the caller chooses the object's id, which must be unique.
func (ob *objectStore) putObjectAs(ctx context.Context, bucket, name, id string, r io.Reader) error {
	u := &upload{objects: ob, bucket: bucket, id: id}
	if err := u.run(ctx, name, r); err != nil {
		return errors.Join(translate(err, "upload "+name), ob.purgeChunks(bucket, u.id))
	}
	return nil
}

// upload writes one object and limits the chunks in flight.
type upload struct {
	objects *objectStore
	bucket  string
	id      string // id of the object, part of the subject of its chunks
	pending []jetstream.PubAckFuture
	stored  uint64 // sequence of the last acknowledged chunk
}

const (
	blobChunk  = 128 << 10
	blobWindow = 32 // chunks in flight
)

func (u *upload) run(ctx context.Context, name string, r io.Reader) error {
	sum := sha256.New()
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: blobChunk}},
		Bucket:     u.bucket, NUID: u.id,
	}
	for {
		chunk := make([]byte, blobChunk)
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			sum.Write(chunk[:n])
			info.Size, info.Chunks = info.Size+uint64(n), info.Chunks+1
			if err := u.send(
				ctx,
				&nats.Msg{Subject: chunkSubject(u.bucket, u.id), Data: chunk[:n]},
				blobWindow,
			); err != nil {
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
	if err := u.settle(ctx, 0); err != nil { // all chunks must be stored before the entry
		return err
	}
	info.Digest = storeDigest(sum.Sum(nil))
	meta, err := objectMeta(info)
	if err != nil {
		return err
	}
	return u.send(ctx, meta, 0)
}

// send publishes a message and waits until no more messages are in flight than most allows.
func (u *upload) send(ctx context.Context, m *nats.Msg, most int) error {
	ack, err := u.objects.js.PublishMsgAsync(m)
	if err != nil {
		return err
	}
	u.pending = append(u.pending, ack)
	return u.settle(ctx, most)
}

func (u *upload) settle(ctx context.Context, most int) error {
	for len(u.pending) > most {
		bounded, cancel := u.objects.bound(ctx)
		var err error
		select {
		case ack := <-u.pending[0].Ok():
			// If no server took a message, the client sends it again, after the messages that follow it.
			if ack.Sequence <= u.stored {
				err = protocol.Errorf(protocol.Unavailable, "", "chunks were stored out of order")
			}
			u.stored = ack.Sequence
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

// openObject opens a stored object. Error: not_found.
func (ob *objectStore) openObject(ctx context.Context, bucket, name string) (io.ReadCloser, error) {
	info, err := ob.objectInfo(ctx, bucket, name)
	if err == nil && info == nil {
		err = protocol.Errorf(protocol.NotFound, "", "%s is not stored", name)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	o := &object{PipeReader: r, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		w.CloseWithError(ob.copyObject(ctx, bucket, info, w))
	}()
	return o, nil
}

// object is a stored object that is being read.
type object struct {
	*io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

// Close ends the read.
func (o *object) Close() error {
	o.cancel()
	err := o.PipeReader.Close()
	<-o.done
	return err
}

// copyObject writes the content of an object to w and verifies it.
func (ob *objectStore) copyObject(ctx context.Context, bucket string, info *jetstream.ObjectInfo, w io.Writer) error {
	stream, subject, sum := "OBJ_"+bucket, chunkSubject(bucket, info.NUID), sha256.New()
	copied, next := uint32(0), uint64(1)
	visit := func(m *stored) (bool, error) {
		copied, next = copied+1, m.sequence+1
		sum.Write(m.data)
		_, err := w.Write(m.data)
		return copied < info.Chunks, err
	}
	for copied < info.Chunks {
		before := copied
		if err := ob.scan(ctx, stream, subject, next, visit); err != nil {
			return err
		}
		if copied > before {
			continue
		}
		// The replica that answered lacks the next chunk, so read it from the leader.
		m, err := ob.nextOnSubject(ctx, stream, subject, next)
		if protocol.CodeOf(err) == protocol.NotFound {
			err = protocol.Errorf(protocol.Unavailable, "", "%s was removed while it was read", info.Name)
		}
		if err != nil {
			return err
		}
		if _, err := visit(m); err != nil {
			return err
		}
	}
	if digest := storeDigest(sum.Sum(nil)); info.Chunks > 0 && digest != info.Digest {
		return protocol.Errorf(protocol.Unavailable, "", "the stored content of %s does not match its digest", info.Name)
	}
	return nil
}

// purgeChunks removes the chunks of an object. If it fails, the chunks remain. Chunks of blobs expire, and
// [ImageStore.RemoveUnwantedFiles] removes chunks of image files.
func (ob *objectStore) purgeChunks(bucket, id string) error {
	ctx, cancel := ob.bound(context.Background())
	defer cancel()
	stream, err := ob.js.Stream(ctx, "OBJ_"+bucket)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(chunkSubject(bucket, id)))
	}
	return translate(err, "remove the chunks of an object")
}

// removeParts removes the chunks of interrupted uploads. An upload counts as interrupted if its object's id is not in
// complete and its last chunk is older than age.
func (ob *objectStore) removeParts(
	ctx context.Context, bucket string, complete map[string]bool, age time.Duration,
) error {
	bounded, cancel := ob.bound(ctx)
	defer cancel()
	name := "OBJ_" + bucket
	stream, err := ob.js.Stream(bounded, name)
	var parts *jetstream.StreamInfo
	if err == nil {
		parts, err = stream.Info(bounded, jetstream.WithSubjectFilter(chunkSubject(bucket, "*")))
	}
	if err != nil {
		return translate(err, "find interrupted uploads")
	}
	for subject := range parts.State.Subjects {
		id := strings.TrimPrefix(subject, chunkSubject(bucket, ""))
		if complete[id] {
			continue
		}
		last, err := ob.lastOnSubject(ctx, name, subject)
		if protocol.CodeOf(err) == protocol.NotFound {
			continue
		}
		if err == nil && ob.Now().Sub(last.time) > age {
			err = ob.purgeChunks(bucket, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func chunkSubject(bucket, id string) string { return "$O." + bucket + ".C." + id }

func metaSubject(bucket, name string) string {
	return "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// storeDigest formats a digest as the object store does.
func storeDigest(sum []byte) string { return "SHA-256=" + base64.URLEncoding.EncodeToString(sum) }
