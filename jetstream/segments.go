package jetstream

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/singleflight"

	"github.com/boxfleet/boxfleet/protocol"
)

// A segment is a part of a history that was moved out of the log: its messages as they were stored, compressed into one
// object. A segment never changes.

// segmentMessage is a message of the log as it was stored.
type segmentMessage struct {
	Record uint64              `json:"r"`
	Time   time.Time           `json:"t"`
	Header map[string][]string `json:"h,omitempty"`
	Data   []byte              `json:"d"`
}

// segmentContent is the uncompressed content of a segment.
type segmentContent struct {
	Version  int              `json:"v"`
	Messages []segmentMessage `json:"messages"`
}

// segment describes a segment: its object and its messages.
type segment struct {
	Object      string    `json:"object"`
	FirstEvent  uint64    `json:"first_event"`
	LastEvent   uint64    `json:"last_event"`
	FirstRecord uint64    `json:"first_record"`
	LastRecord  uint64    `json:"last_record"`
	LastBatch   string    `json:"last_batch,omitempty"`
	After       uint64    `json:"after,omitempty"` // the record before the first message
	Until       time.Time `json:"until"`           // when the last message was stored
	Messages    int       `json:"messages"`
	Size        int64     `json:"size"`   // size of the uncompressed content
	Stored      int64     `json:"stored"` // size of the compressed content
	Digest      string    `json:"digest"` // SHA-256 of the compressed content, in hexadecimal
}

const (
	// segmentSize is the total size of messages, before compression, at which a segment is full.
	segmentSize = 1 << 20
	// segmentMost bounds the size of a segment before compression: a full segment plus a last message of 1 MiB, with
	// their encoding.
	segmentMost = 8 << 20
	// segmentsCached is how many bytes of segment messages a connection caches.
	segmentsCached = 16 << 20
)

// directHeaders are the headers that a server adds to messages that are read by a direct get.
var directHeaders = []string{
	"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp",
	"Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence",
}

// segmentMessageOf converts a message that was read from the log or from a segment.
func segmentMessageOf(m *stored) (segmentMessage, error) {
	at := m.time
	if at.IsZero() { // read by a direct get
		var err error
		if at, err = time.Parse(time.RFC3339Nano, m.header.Get("Nats-Time-Stamp")); err != nil {
			return segmentMessage{}, protocol.Errorf(protocol.Internal, "", "record %d has no time: %v", m.sequence, err)
		}
	}
	kept := segmentMessage{Record: m.sequence, Time: at.UTC(), Data: m.data, Header: map[string][]string{}}
	for name, values := range m.header {
		kept.Header[name] = values
	}
	for _, name := range directHeaders {
		delete(kept.Header, name)
	}
	return kept, nil
}

// stored converts the message back to the form in which the log returned it.
func (m *segmentMessage) stored(subject string) *stored {
	return &stored{subject: subject, sequence: m.Record, header: nats.Header(m.Header), data: m.Data, time: m.Time,
		strict: true}
}

// segments stores and reads the parts of histories that were moved out of the event log, and the manifests that list
// them.
type segments struct {
	*streams

	events  *EventLog
	objects *objectStore
	cache   segmentCache
}

// encodeSegment compresses messages and describes them.
// Only messages for which accepted returns true determine the segment's first and last event.
func (sg *segments) encodeSegment(tenant, sandbox string, messages []segmentMessage,
	accepted func(*entry) (bool, error)) (content []byte, s segment, err error) {
	raw := protocol.Encode(&segmentContent{Version: protocol.Version, Messages: messages})
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return nil, s, protocol.Errorf(protocol.Internal, "", "compress a segment: %v", err)
	}
	defer encoder.Close()
	content = encoder.EncodeAll(raw, nil)
	sum := sha256.Sum256(content)
	s = segment{Object: tenant + "." + sandbox + "." + strings.ToLower(ulid.Make().String()), Messages: len(messages),
		Size: int64(len(raw)), Stored: int64(len(content)), Digest: hex.EncodeToString(sum[:])}
	subject := protocol.EventSubject(tenant, sandbox)
	for i := range messages {
		e := entryOf(messages[i].stored(subject))
		isPart, err := accepted(e)
		if err != nil {
			return nil, s, err
		}
		if i == 0 {
			s.FirstRecord, s.After = e.record, e.after
		}
		s.LastRecord, s.LastBatch, s.Until = e.record, e.position().Batch, messages[i].Time
		if isPart {
			if s.FirstEvent == 0 {
				s.FirstEvent = e.batch.First()
			}
			s.LastEvent = e.batch.Last()
		}
	}
	return content, s, nil
}

// decodeSegment verifies and decompresses the stored content of a segment.
func decodeSegment(s *segment, content []byte) ([]segmentMessage, error) {
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != s.Digest {
		return nil, protocol.Errorf(
			protocol.Internal,
			"",
			"the content of segment %s does not match its digest",
			s.Object,
		)
	}
	if s.Size < 0 || s.Size > segmentMost {
		return nil, protocol.Errorf(
			protocol.Internal,
			"",
			"segment %s has an invalid size of %d bytes",
			s.Object,
			s.Size,
		)
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(segmentMost))
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "read segment %s: %v", s.Object, err)
	}
	defer decoder.Close()
	raw, err := decoder.DecodeAll(content, make([]byte, 0, s.Size))
	var inside segmentContent
	if err == nil {
		err = protocol.Decode(raw, &inside)
	}
	if err == nil {
		err = protocol.CheckVersion(inside.Version)
	}
	if err == nil && len(inside.Messages) != s.Messages {
		err = protocol.Errorf(protocol.Internal, "", "it has %d messages, not %d", len(inside.Messages), s.Messages)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "read segment %s: %v", s.Object, err)
	}
	return inside.Messages, nil
}

// storeSegment stores a segment and verifies that it can be read.
func (sg *segments) storeSegment(ctx context.Context, s *segment, content []byte) error {
	chunks := segmentChunks(s.Object)
	err := sg.objects.putObjectAs(ctx, protocol.BucketSegments, s.Object, chunks, 0, bytes.NewReader(content))
	if err != nil {
		return err
	}
	back, err := sg.segmentContent(ctx, s)
	if err != nil {
		return err
	}
	_, err = decodeSegment(s, back)
	return err
}

func (sg *segments) segmentContent(ctx context.Context, s *segment) ([]byte, error) {
	r, err := sg.objects.openObject(ctx, protocol.BucketSegments, s.Object)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(r, s.Stored+1))
	if closed := r.Close(); err == nil && closed != nil {
		err = closed
	}
	return content, err
}

// removeSegment removes a segment's object, or those parts of the object that a crash left. It removes without writing
// anything, because a write would fail in a full bucket.
func (sg *segments) removeSegment(ctx context.Context, object string) error {
	if err := sg.purge(
		ctx,
		"OBJ_"+protocol.BucketSegments,
		metaSubject(protocol.BucketSegments, object),
		0,
	); err != nil {
		return err
	}
	return sg.objects.purgeChunks(protocol.BucketSegments, segmentChunks(object))
}

// segmentChunks returns the id of the chunks of a segment's object. No id is used twice.
func segmentChunks(object string) string { return object[strings.LastIndex(object, ".")+1:] }

// segmentCache caches the messages of recently read segments.
type segmentCache struct {
	full, inManifest int // segmentSize and segmentsInManifest; tests set smaller values

	loading singleflight.Group

	mu    sync.Mutex
	size  int64
	order list.List // elements of type *cachedSegment, the most recently used first
	byID  map[string]*list.Element
}

type cachedSegment struct {
	object   string
	size     int64
	messages []segmentMessage
}

func (k *segmentCache) get(object string) ([]segmentMessage, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.byID[object]
	if e == nil {
		return nil, false
	}
	k.order.MoveToFront(e)
	return e.Value.(*cachedSegment).messages, true
}

func (k *segmentCache) put(s *segment, messages []segmentMessage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byID[s.Object] != nil {
		return
	}
	if k.byID == nil {
		k.byID = map[string]*list.Element{}
	}
	k.byID[s.Object] = k.order.PushFront(&cachedSegment{s.Object, s.Size, messages})
	for k.size += s.Size; k.size > segmentsCached; {
		last := k.order.Remove(k.order.Back()).(*cachedSegment)
		delete(k.byID, last.object)
		k.size -= last.size
	}
}

// segmentMessages reads the messages of a segment, which the caller must not change. Concurrent readers of the same
// segment share one read. Error: not_found if the segment is no longer stored.
func (sg *segments) segmentMessages(ctx context.Context, s *segment) ([]segmentMessage, error) {
	if messages, ok := sg.cache.get(s.Object); ok {
		return messages, nil
	}
	read := sg.cache.loading.DoChan(s.Object, func() (any, error) {
		bounded, cancel := sg.bound(context.WithoutCancel(ctx))
		defer cancel()
		content, err := sg.segmentContent(bounded, s)
		if err != nil {
			return nil, err
		}
		messages, err := decodeSegment(s, content)
		if err == nil {
			sg.cache.put(s, messages)
		}
		return messages, err
	})
	select {
	case <-ctx.Done():
		return nil, translate(ctx.Err(), "read a segment")
	case r := <-read:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.([]segmentMessage), nil
	}
}

// readMoved visits the messages of a history that were moved to segments and are between two records. last is the
// newest record that is in a segment, or the argument after if no record in a segment is newer.
func (sg *segments) readMoved(ctx context.Context, tenant, sandbox string, after, before uint64,
	visit func(e *entry) (bool, error)) (last uint64, err error) {
	for try := 1; ; try++ {
		last, err := sg.readSegments(ctx, tenant, sandbox, after, before, func(e *entry) (bool, error) {
			after = e.record
			return visit(e)
		})
		// A segment may be dropped while it is being read. The manifest then no longer lists it.
		if protocol.CodeOf(err) != protocol.NotFound || try == 3 {
			return last, err
		}
	}
}

func (sg *segments) readSegments(ctx context.Context, tenant, sandbox string, after, before uint64,
	visit func(e *entry) (bool, error)) (last uint64, err error) {
	m, err := sg.manifest(ctx, tenant, sandbox)
	if err != nil || m.last() <= after {
		return after, err
	}
	subject := protocol.EventSubject(tenant, sandbox)
	return m.last(), m.each(ctx, after, func(s *segment) (bool, error) {
		if s.FirstRecord >= before {
			return false, nil
		}
		messages, err := sg.segmentMessages(ctx, s)
		if err != nil {
			return false, err
		}
		from := sort.Search(len(messages), func(i int) bool { return messages[i].Record > after })
		for i := from; i < len(messages); i++ {
			if messages[i].Record >= before {
				return false, nil
			}
			if more, err := visit(entryOf(messages[i].stored(subject))); !more || err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// at reads the message at a record of a history, from the log or from a segment. Error: not_found.
func (sg *segments) at(ctx context.Context, tenant, sandbox string, record uint64) (*entry, error) {
	missing := protocol.Errorf(protocol.NotFound, "", "the history of sandbox %s has no batch at record %d", sandbox,
		record)
	m, err := sg.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": record})
	switch {
	case protocol.CodeOf(err) == protocol.NotFound:
		e, err := sg.movedEntry(ctx, tenant, sandbox, record)
		if err == nil && e == nil {
			err = missing
		}
		return e, err
	case err != nil:
		return nil, err
	case m.subject != protocol.EventSubject(tenant, sandbox):
		return nil, missing
	}
	return entryOf(m), nil
}

// movedEntry reads the message at a record from a segment. It returns nil if no segment has the record.
func (sg *segments) movedEntry(ctx context.Context, tenant, sandbox string, record uint64) (found *entry, err error) {
	if record == 0 {
		return nil, nil
	}
	_, err = sg.readMoved(ctx, tenant, sandbox, record-1, record+1, func(e *entry) (bool, error) {
		found = e
		return false, nil
	})
	return found, err
}

// segmentsBefore returns the last record of the segments that end before an event, or 0 if no segment does.
func (sg *segments) segmentsBefore(
	ctx context.Context, tenant, sandbox string, event uint64,
) (record uint64, err error) {
	if event <= 1 {
		return 0, nil
	}
	m, err := sg.manifest(ctx, tenant, sandbox)
	if err != nil || m.last() == 0 {
		return 0, err
	}
	after := uint64(0)
	for i, p := range m.Pages { // only the page that has the event is read
		if i+1 < len(m.Pages) && m.Pages[i+1].FirstEvent <= event {
			after = p.LastRecord
		}
	}
	record = after
	err = m.each(ctx, after, func(s *segment) (bool, error) {
		if s.LastEvent == 0 || s.LastEvent >= event {
			return false, nil
		}
		record = s.LastRecord
		return true, nil
	})
	return record, err
}
