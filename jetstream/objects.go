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

// objectAt is like objectInfo, but also returns the sequence of the object's entry. A removed object may still have an
// entry, which marks the object as removed. The sequence is 0 if the object was never stored.
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
		return nil, m.sequence, nil
	}
	info.ModTime = m.time
	return info, m.sequence, nil
}

// writeEntry replaces an object's entry with a new one, and removes the replaced entry. The parameter expected is the
// sequence of the entry to be replaced, or 0 if there is none. A NATS client replaces entries with the rollup header.
// No stream allows this header, because with it a writer of one subject could erase the whole stream. Error:
// [ErrConflict] if the entry has changed.
func (ob *objectStore) writeEntry(ctx context.Context, info *jetstream.ObjectInfo, expected uint64) (uint64, error) {
	entry := *info
	entry.ModTime = time.Time{} // readers use the time at which the message was stored
	data, err := json.Marshal(entry)
	if err != nil {
		return 0, protocol.Errorf(protocol.Internal, "", "write the entry of %s: %v", info.Name, err)
	}
	m := nats.NewMsg(metaSubject(info.Bucket, info.Name))
	m.Data = data
	sequence, err := ob.publish(ctx, m, int64(expected))
	if err != nil {
		return 0, err
	}
	if expected != 0 {
		ob.removeEntries(ctx, info, sequence-1)
	}
	return sequence, nil
}

// removeEntries removes an object's entries up to a sequence. If the removal fails, the entries stay until the next
// entry is written. They do no harm: readers use only the newest entry.
func (ob *objectStore) removeEntries(ctx context.Context, info *jetstream.ObjectInfo, through uint64) {
	err := ob.purgeThrough(ctx, "OBJ_"+info.Bucket, metaSubject(info.Bucket, info.Name), through)
	if err != nil {
		ob.log.Warn("could not remove the replaced entry of an object", "object", info.Name, "error", err)
	}
}

// renewObject writes an object's entry again, without its content, so that its age starts from zero. Error:
// [ErrConflict] if the entry has changed.
func (ob *objectStore) renewObject(ctx context.Context, info *jetstream.ObjectInfo, expected uint64) error {
	_, err := ob.writeEntry(ctx, info, expected)
	return translate(err, "renew "+info.Name)
}

// removeObject removes an object. Error: [ErrConflict] if the object was stored again in the meantime.
func (ob *objectStore) removeObject(ctx context.Context, info *jetstream.ObjectInfo, expected uint64) error {
	gone := *info
	gone.Deleted, gone.Size, gone.Chunks, gone.Digest = true, 0, 0, ""
	// The new entry marks the object as removed. It is refused if another process has stored the object again. Once the
	// object is removed, no process needs the entry.
	sequence, err := ob.writeEntry(ctx, &gone, expected)
	if err != nil {
		return translate(err, "remove "+info.Name)
	}
	ob.removeEntries(ctx, info, sequence)
	return ob.purgeChunks(info.Bucket, info.NUID)
}

// putObject stores content in a bucket of the object store and replaces the object's entry. The parameter expected is
// the sequence of the entry to be replaced, or 0 if there is none. Error: [ErrConflict] if the entry has changed; then
// putObject has removed the content again.
func (ob *objectStore) putObject(ctx context.Context, bucket, name string, expected uint64, r io.Reader) error {
	return ob.putObjectAs(ctx, bucket, name, nuid.Next(), expected, r)
}

// putObjectAs is like putObject, but the caller chooses the object's id, which must be unique.
func (ob *objectStore) putObjectAs(ctx context.Context, bucket, name, id string, expected uint64, r io.Reader) error {
	u := &upload{objects: ob, bucket: bucket, id: id}
	info, err := u.run(ctx, name, r)
	if err == nil {
		var sequence uint64
		// ctx does not end the wait for the answer, because without the answer it is unknown whether the entry is
		// stored.
		sequence, err = ob.writeEntry(context.WithoutCancel(ctx), info, expected)
		unknown := isOneOf(err, protocol.Unavailable, protocol.DeadlineExceeded)
		switch {
		case err == nil:
			if err = u.progress(); err == nil {
				return nil
			}
			ob.removeEntries(ctx, info, sequence)
		case (unknown || err == ErrConflict) && ob.isStored(info):
			return nil
		case unknown:
			return err // the server may still store the entry, so the chunks stay until they are old
		}
	}
	u.awaitOutcomes() // otherwise a chunk that is stored after the purge would stay
	return errors.Join(translateWrite(err, chunkSubject(bucket, id)), ob.purgeChunks(bucket, id))
}

// isStored reports whether the entry of an object refers to the content with the object's id.
func (ob *objectStore) isStored(info *jetstream.ObjectInfo) bool {
	ctx, cancel := ob.bound(context.Background())
	defer cancel()
	now, err := ob.objectInfo(ctx, info.Bucket, info.Name)
	return err == nil && now != nil && now.NUID == info.NUID
}

// upload writes one object and limits the chunks in flight.
type upload struct {
	objects *objectStore
	bucket  string
	id      string // id of the object, part of the subject of its chunks
	pending []jetstream.PubAckFuture
	stored  uint64        // stream sequence of the last acknowledged chunk
	last    time.Duration // time since boot of the last progress, 0 before the first
}

// UploadPartsAge is the age at which the chunks of an upload that has not ended are removed.
const UploadPartsAge = 10 * time.Minute

// progress records that the upload continues. An upload pauses while its process or machine is stopped. If the pause
// was too long, the upload's first chunks may have been removed, because the upload seemed to be interrupted. Then
// progress fails. Error: unavailable.
func (u *upload) progress() error {
	age := UnwantedAge
	if u.bucket == protocol.BucketBlobs {
		age = UploadPartsAge
	}
	now := u.objects.sinceBoot()
	paused := now - u.last
	if u.last != 0 && paused > age/2 {
		return protocol.Errorf(protocol.Unavailable, "", "the upload was interrupted for %s: upload it again",
			paused.Round(time.Second))
	}
	u.last = now
	return nil
}

// headerObject is a header of chunks: the name of the object that they belong to.
const headerObject = "Boxfleet-Object"

const (
	blobChunk  = 128 << 10
	blobWindow = 32 // chunks in flight
)

// run stores the chunks, and returns the object's entry.
func (u *upload) run(ctx context.Context, name string, r io.Reader) (*jetstream.ObjectInfo, error) {
	sum := sha256.New()
	info := &jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: blobChunk}},
		Bucket:     u.bucket, NUID: u.id,
	}
	for {
		chunk := make([]byte, blobChunk)
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			sum.Write(chunk[:n])
			info.Size, info.Chunks = info.Size+uint64(n), info.Chunks+1
			m := nats.NewMsg(chunkSubject(u.bucket, u.id))
			m.Header.Set(headerObject, name)
			m.Data = chunk[:n]
			if err := u.send(ctx, m, blobWindow); err != nil {
				return nil, err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if err := u.settle(ctx, 0); err != nil { // all chunks must be stored before the entry
		return nil, err
	}
	info.Digest = storeDigest(sum.Sum(nil))
	return info, u.progress()
}

// awaitOutcomes waits until each chunk in flight is stored or refused, for at most the connection's timeout.
func (u *upload) awaitOutcomes() {
	ctx, cancel := u.objects.bound(context.Background())
	defer cancel()
	for _, ack := range u.pending {
		select {
		case <-ack.Ok():
		case <-ack.Err():
		case <-ctx.Done():
			return
		}
	}
}

// send publishes a message, and then waits until the number of messages in flight is at most the parameter most.
func (u *upload) send(ctx context.Context, m *nats.Msg, most int) error {
	if err := u.progress(); err != nil {
		return err
	}
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
			// The client sends a message again if no server took it, after the messages that follow. Then the sequences
			// do not grow.
			if ack.Sequence <= u.stored {
				err = protocol.Errorf(protocol.Unavailable, "", "chunks were stored out of order")
			}
			if u.stored = ack.Sequence; err == nil {
				err = u.progress()
			}
		case err = <-u.pending[0].Err():
		case <-bounded.Done():
			err = bounded.Err()
		}
		cancel()
		u.pending = u.pending[1:]
		if err != nil {
			return err
		}
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

// purgeChunks removes the chunks of an object. If it fails, the chunks remain until [BlobStore.RemoveUploadParts] or
// [ImageStore.RemoveUnwantedFiles] removes them.
func (ob *objectStore) purgeChunks(bucket, id string) error {
	ctx, cancel := ob.bound(context.Background())
	defer cancel()
	stream, err := ob.js.Stream(ctx, "OBJ_"+bucket)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(chunkSubject(bucket, id)))
	}
	return translate(err, "remove the chunks of an object")
}

// eachPart visits the ids in a bucket that have chunks and are not in complete, with the number of their chunks and the
// last chunk.
func (ob *objectStore) eachPart(ctx context.Context, bucket string, complete map[string]bool,
	visit func(id string, chunks uint64, last *stored) error,
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
		return translate(err, "find unfinished uploads")
	}
	for subject, chunks := range parts.State.Subjects {
		id := strings.TrimPrefix(subject, chunkSubject(bucket, ""))
		if complete[id] {
			continue
		}
		last, err := ob.lastOnSubject(ctx, name, subject)
		if protocol.CodeOf(err) == protocol.NotFound {
			continue
		}
		if err == nil {
			err = visit(id, chunks, last)
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
