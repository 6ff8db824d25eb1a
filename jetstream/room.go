package jetstream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Room is how much the event log can still take.
type Room struct {
	Bytes   int64  // used
	Limit   int64  // bytes at which the server refuses every append; 0: no limit
	Reserve int64  // the last bytes below Limit: for ends and deletes of what was accepted, not for new work
	Short   string // why new work must wait although Limit is not near, such as a disk that is nearly full; else empty
	Failed  string // why the log takes no append at all, such as a write error that the server remembers; else empty
}

const (
	// reserveMost bounds the reserve of a large log.
	reserveMost = 1 << 30
	// roomFresh is for how long an answer about the room is used again.
	roomFresh = time.Second
)

// reserveOf is the part of a log with this limit that new work may not use.
func reserveOf(limit int64) int64 { return min(max(limit, 0)/8, reserveMost) }

// Full says that nothing can be appended: neither new work nor the ends of what was accepted.
func (r Room) Full() bool { return r.Failed != "" || r.Limit > 0 && r.Bytes >= r.Limit }

// RefusesNew says that new work must be refused or wait: what is left is for ends and deletes.
func (r Room) RefusesNew() bool {
	return r.Full() || r.Short != "" || r.Limit > 0 && r.Bytes >= r.Limit-r.Reserve
}

// Err is nil while new work is taken; else resource_exhausted with reason log_full, which says what
// fills the log and what to do.
func (r Room) Err() error {
	switch {
	case !r.RefusesNew():
		return nil
	case r.Failed != "":
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonLogFull, "the event log takes no writes: %s", r.Failed)
	case r.Short != "":
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonLogFull, "the event log takes no new work: %s", r.Short)
	}
	return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonLogFull,
		"the event log takes no new work: %s of %s are used, and the last %s are for ending what was accepted; delete sandboxes, lower coordinator.cleanup_ttl, or raise coordinator.event_max_bytes",
		protocol.Bytes(r.Bytes), protocol.Bytes(r.Limit), protocol.Bytes(r.Reserve))
}

// String says how full the log is.
func (r Room) String() string {
	if r.Limit == 0 {
		return fmt.Sprintf("%s used, no limit", protocol.Bytes(r.Bytes))
	}
	return fmt.Sprintf("%s of %s used", protocol.Bytes(r.Bytes), protocol.Bytes(r.Limit))
}

// roomKept is the last answer about the room, and what this process knows beside it.
type roomKept struct {
	mu            sync.Mutex
	room          Room
	at            time.Time
	short, failed string
	unanswered    bool // an append had no answer, which may be a lost one, or a store that refuses writes
	disk          func() (free, size int64)
}

// suspect notes that an append had no answer.
func (k *roomKept) suspect() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unanswered = true
}

// suspected says whether one had none since it was last asked.
func (k *roomKept) suspected() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.unanswered
	k.unanswered = false
	return was
}

// LogRoom asks how much room the event log has. An answer is used for a second, so that asking before
// each request costs no round trip. Errors: unavailable, deadline_exceeded, not_provisioned.
func (c *Conn) LogRoom(ctx context.Context) (Room, error) {
	k := &c.room
	k.mu.Lock()
	fresh := time.Since(k.at) <= roomFresh
	k.mu.Unlock()
	if !fresh { // several may ask at once: the answers are the same
		info, err := c.streamInfo(ctx, protocol.StreamEvents)
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

func (c *Conn) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	return askRepeatedly(ctx, c, "look at "+name, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		stream, err := c.readStream(ctx, name)
		if err != nil {
			return nil, err
		}
		return stream.CachedInfo(), nil
	})
}

// readStream asks once for a stream. The answer carries the time of the server that leads it: that of the
// event log's leader is the store's.
func (c *Conn) readStream(ctx context.Context, name string) (jetstream.Stream, error) {
	sent := c.sinceBoot()
	stream, err := c.js.Stream(ctx, name)
	if err != nil || name != protocol.StreamEvents {
		return stream, err
	}
	moved := c.clock.take(sent, c.sinceBoot(), stream.CachedInfo().TimeStamp)
	if moved.Abs() > protocol.MaxSkew {
		c.log.Warn("the store's clock was set, or another NATS server leads whose clock is set otherwise", "by", moved.Round(time.Millisecond))
	}
	return stream, nil
}

// setFailed notes why the log takes no append, or that it does again.
func (k *roomKept) setFailed(why string) (changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed = k.failed != why
	k.failed = why
	return changed
}

// broken is why no append can succeed, as far as this process knows.
func (k *roomKept) broken() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failed
}

// SetDisk says how to look at the disk that the server writes to, where this process knows it.
func (c *Conn) SetDisk(disk func() (free, size int64)) {
	c.room.mu.Lock()
	defer c.room.mu.Unlock()
	c.room.disk = disk
}

// SetShort says why new work must wait although the log's limit is not near; empty: it need not.
func (c *Conn) SetShort(why string) {
	c.room.mu.Lock()
	defer c.room.mu.Unlock()
	c.room.short = why
}
