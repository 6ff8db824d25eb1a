package jetstream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Room is how much room the event log has.
type Room struct {
	Bytes   int64  // size of the log
	Limit   int64  // size at which the server refuses every append; 0: no limit
	Reserve int64  // number of bytes below Limit that are kept for ends and deletes: new work may not use them
	Short   string // what makes new work wait while Bytes is far below Limit, such as a nearly full disk; may be empty
	Failed  string // why the log accepts no append, such as a write error that the server remembers; may be empty
}

const (
	// reserveMost bounds the reserve of a large log.
	reserveMost = 1 << 30
	// roomFresh is how long an answer about the room is reused.
	roomFresh = time.Second
)

// reserveOf returns how many bytes new work must leave free in a log with this limit.
func reserveOf(limit int64) int64 { return min(max(limit, 0)/8, reserveMost) }

// Full reports whether nothing can be appended: neither new work nor ends and deletes.
func (r Room) Full() bool { return r.Failed != "" || r.Limit > 0 && r.Bytes >= r.Limit }

// RefusesNew reports whether new work must be refused or wait: the remaining room is reserved for ends and deletes.
func (r Room) RefusesNew() bool {
	return r.Full() || r.Short != "" || r.Limit > 0 && r.Bytes >= r.Limit-r.Reserve
}

// Err returns nil while new work is accepted. Otherwise it returns resource_exhausted with reason log_full; the message
// names the cause and the remedy.
func (r Room) Err() error {
	switch {
	case !r.RefusesNew():
		return nil
	case r.Failed != "":
		return logFull("the event log accepts no writes: %s", r.Failed)
	case r.Short != "":
		return logFull("the event log accepts no new work: %s", r.Short)
	}
	return logFull("the event log accepts no new work: %s of %s are used, and the last %s are reserved for ends and "+
		"deletes; delete sandboxes, lower coordinator.cleanup_ttl, or raise coordinator.event_max_bytes",
		protocol.Bytes(r.Bytes), protocol.Bytes(r.Limit), protocol.Bytes(r.Reserve))
}

func logFull(format string, args ...any) error {
	return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonLogFull, format, args...)
}

// String describes how full the log is.
func (r Room) String() string {
	if r.Limit == 0 {
		return fmt.Sprintf("%s used, no limit", protocol.Bytes(r.Bytes))
	}
	return fmt.Sprintf("%s of %s used", protocol.Bytes(r.Bytes), protocol.Bytes(r.Limit))
}

// roomState is the last answer about the room in the event log, and everything else that this process knows about the
// room.
type roomState struct {
	mu            sync.Mutex
	room          Room
	at            time.Time
	short, failed string
	unanswered    bool // an append got no answer: the answer was lost, or the store refuses writes
	disk          func() (free, size int64)
}

// suspect records that an append got no answer.
func (k *roomState) suspect() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unanswered = true
}

// suspected reports whether an append got no answer since the last call.
func (k *roomState) suspected() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.unanswered
	k.unanswered = false
	return was
}

// LogRoom returns how much room the event log has. An answer is reused for a second, so that callers can ask before
// each request without a round trip. Errors: unavailable, deadline_exceeded, not_provisioned.
func (h *StoreHealth) LogRoom(ctx context.Context) (Room, error) {
	k := &h.room
	k.mu.Lock()
	fresh := time.Since(k.at) <= roomFresh || k.failed != "" // a log that accepts no writes may not answer either
	k.mu.Unlock()
	if !fresh { // concurrent callers may all ask: the answers are the same
		info, err := h.streamInfo(ctx, protocol.StreamEvents)
		if err != nil {
			return Room{}, err
		}
		k.mu.Lock()
		k.room = Room{Bytes: int64(info.State.Bytes), Limit: max(info.Config.MaxBytes, 0)}
		k.room.Reserve, k.at = reserveOf(k.room.Limit), time.Now()
		k.mu.Unlock()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	room := k.room
	room.Short, room.Failed = k.short, k.failed
	return room, nil
}

func (s *streams) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	doing := "read the state of " + name
	return askRepeatedly(ctx, &s.connection, doing, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		stream, err := s.readStream(ctx, name)
		if err != nil {
			return nil, err
		}
		return stream.CachedInfo(), nil
	})
}

// readStream requests the state of a stream once. The answer carries the time of the server that leads the stream. The
// time of the event log's leader is the store's time.
func (c *core) readStream(ctx context.Context, name string) (jetstream.Stream, error) {
	ctx, end := c.await(ctx, "$JS.API.STREAM.INFO."+name)
	defer end()
	sent := c.sinceBoot()
	stream, err := c.js.Stream(ctx, name)
	err = causeOf(ctx, err)
	if err != nil || name != protocol.StreamEvents {
		return stream, err
	}
	moved := c.clock.take(sent, c.sinceBoot(), stream.CachedInfo().TimeStamp)
	if moved.Abs() > protocol.MaxSkew {
		c.log.Warn("the store's clock jumped: it was set, or another NATS server now leads the event log",
			"by", moved.Round(time.Millisecond))
	}
	return stream, nil
}

// setFailed records why the log accepts no append. An empty text means that the log accepts appends.
func (k *roomState) setFailed(why string) (changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed = k.failed != why
	k.failed = why
	return changed
}

// broken returns why no append can succeed, as far as this process knows.
func (k *roomState) broken() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failed
}

// SetDisk tells the connection how to measure the disk that the server writes to, if this process can measure it.
func (h *StoreHealth) SetDisk(disk func() (free, size int64)) {
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.room.disk = disk
}

// SetWorkMustWait sets why new work must wait although the log's limit is not near. An empty text means that new work
// need not wait.
func (h *StoreHealth) SetWorkMustWait(why string) {
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.room.short = why
}
