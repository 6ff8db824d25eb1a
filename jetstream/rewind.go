package jetstream

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// The log can be behind what was folded from it: somebody restored a backup of the server's store, or
// power was lost and with it what was acknowledged last, while a coordinator or a worker lived on, or
// started again from a snapshot. What it folded is then the end of another history. Nothing can be
// appended to that, since each append expects a record that never comes. So it is looked at where it
// shows, and the history folded again from its beginning.

// Position is a place in the log: a record, and the id of the batch in it, by which it is told from a
// record of the same number in another history of the log. The id is empty where it is not known.
type Position struct {
	Record uint64
	Batch  string
}

// lookAgain is after how long the leader is asked a second time whether its history is another one: one
// that was just elected may be behind for a moment.
const lookAgain = 250 * time.Millisecond

// entry is a message of a history.
type entry struct {
	record uint64
	batch  *protocol.Batch // nil: the message is nobody's
	after  uint64          // the record that its writer took for the last one
	told   bool            // after is known
}

func (c *Conn) entryOf(m *stored) (entry, error) {
	b, err := c.batchOf(m)
	e := entry{record: m.sequence, batch: b}
	if text := m.header.Get(jetstream.ExpectedLastSubjSeqHeader); text != "" {
		after, malformed := strconv.ParseUint(text, 10, 64)
		e.after, e.told = after, malformed == nil
	}
	return e, err
}

// position is where the entry is in the log.
func (e *entry) position() Position {
	p := Position{Record: e.record}
	if e.batch != nil {
		p.Batch = e.batch.ID
	}
	return p
}

// isAt says whether an entry is at a position, as far as that is known.
func (e *entry) isAt(p Position) bool {
	return e.record == p.Record && (p.Batch == "" || e.batch != nil && e.batch.ID == p.Batch)
}

// lastEntry reads the last message of a history from the leader. Error: not_found.
func (c *Conn) lastEntry(ctx context.Context, tenant, sandbox string) (entry, error) {
	m, err := c.lastOnSubject(ctx, protocol.StreamEvents, protocol.EventSubject(tenant, sandbox))
	if err != nil {
		return entry{}, err
	}
	return c.entryOf(m)
}

// holds says whether the log has a position, or a segment that was taken out of it, in the history of a
// sandbox, or, where that is empty, whose ever it is. One in a history that was purged it has no longer.
func (c *Conn) holds(ctx context.Context, tenant, sandbox string, p Position) (bool, error) {
	m, err := c.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": p.Record})
	if protocol.CodeOf(err) == protocol.NotFound {
		if sandbox == "" {
			return false, nil
		}
		e, err := c.movedEntry(ctx, tenant, sandbox, p.Record)
		return e != nil && e.isAt(p), err
	}
	if err != nil {
		return false, err
	}
	if sandbox != "" && m.subject != protocol.EventSubject(tenant, sandbox) {
		return false, nil
	}
	e, err := c.entryOf(m)
	if err != nil {
		return false, err
	}
	return e.isAt(p), nil
}

// Position is where the journal's fold ends.
func (j *Journal) Position() Position {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.at
}

// errRewound says that a stream no longer has what was followed: a server lost it, or has another stream
// in its place.
var errRewound = protocol.Errorf(protocol.Unavailable, "rewound", "the stream does not have what was read of it before")

// IsRewound says whether a follower ended because the log no longer has what it has handed out. What was
// made of that is void, and the following begins at the beginning.
func IsRewound(err error) bool { return err == error(errRewound) }

// check returns errRewound where the stream no longer has the last message that was handled, in its place.
func (f *follower) check(ctx context.Context) error {
	if f.next == 1 {
		return nil
	}
	for looks := 0; ; looks++ {
		lost, err := f.lost(ctx)
		switch {
		case err != nil || !lost:
			return err
		case looks == 1:
			return errRewound
		case !backoff.Sleep(ctx, lookAgain):
			return ctx.Err()
		}
	}
}

func (f *follower) lost(ctx context.Context) (bool, error) {
	last, err := f.conn.lastSequence(ctx, f.stream)
	if err != nil || last < f.next-1 {
		return err == nil, err
	}
	if f.handled.IsZero() {
		return false, nil
	}
	m, err := f.conn.leaderGet(ctx, f.stream, map[string]any{"seq": f.next - 1})
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil // purged, or expired
	}
	return err == nil && !m.time.Equal(f.handled), err
}

// lastSequence is the number of the last message that a stream has, or had, as its leader says.
func (c *Conn) lastSequence(ctx context.Context, stream string) (uint64, error) {
	reply, err := c.ask(ctx, &nats.Msg{Subject: "$JS.API.STREAM.INFO." + stream})
	if err != nil {
		return 0, translate(err, "look at "+stream)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		State struct {
			Last uint64 `json:"last_seq"`
		} `json:"state"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, protocol.Errorf(protocol.Internal, "", "look at %s: %v", stream, err)
	}
	if answer.Error != nil {
		return 0, translate(answer.Error, "look at "+stream)
	}
	return answer.State.Last, nil
}
