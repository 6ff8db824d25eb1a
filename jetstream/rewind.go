package jetstream

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

// holds says whether the log has a position, in the history of a sandbox, or, where that is empty,
// whose ever it is. One in a history that was purged it has no longer.
func (c *Conn) holds(ctx context.Context, tenant, sandbox string, p Position) (bool, error) {
	m, err := c.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": p.Record})
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil
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

// catchUp folds in what is new, and begins again at the history's beginning where the log does not have
// what was folded before.
func (j *Journal) catchUp(ctx context.Context) error {
	for try := 1; ; try++ {
		j.mu.Lock()
		at, doubt := j.at, j.doubt
		j.mu.Unlock()
		last, err := j.conn.lastEntry(ctx, j.cfg.Tenant, j.cfg.Sandbox)
		if err != nil && protocol.CodeOf(err) != protocol.NotFound {
			return err
		}
		broken := err != nil || last.record < at.Record || last.record == at.Record && !last.isAt(at)
		if !broken && last.record > at.Record {
			if broken, err = j.readOn(ctx, at, last); err != nil {
				return err
			}
		}
		if !broken && doubt.Record != 0 && (doubt != at || last.record != at.Record) {
			there, err := j.conn.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, doubt)
			if err != nil {
				return err
			}
			broken = !there
		}
		if !broken {
			j.mu.Lock()
			if j.doubt == doubt {
				j.doubt = Position{}
			}
			j.mu.Unlock()
			return nil
		}
		for _, p := range []Position{at, doubt} {
			if p.Record == 0 {
				continue
			}
			if over, err := j.startOver(ctx, p, try > 2); over || err != nil {
				return err
			}
		}
	}
}

// readOn folds in what follows a position, up to the last entry. It reports true where that follows
// something else.
func (j *Journal) readOn(ctx context.Context, at Position, last entry) (broken bool, err error) {
	for at.Record < last.record {
		e := last
		if !last.told || last.after != at.Record { // otherwise there is nothing between
			next, err := j.conn.historyNext(ctx, j.cfg.Tenant, j.cfg.Sandbox, at.Record)
			if err != nil || len(next) == 0 { // purged meanwhile
				return false, err
			}
			e = next[0]
		}
		if e.told && e.after != at.Record {
			return true, nil
		}
		j.applyAll([]entry{e})
		at = e.position()
	}
	return false, nil
}

// startOver folds the history from its beginning, if the log still does not have a position that was
// folded, after a moment, or in any case. It reports whether it did.
func (j *Journal) startOver(ctx context.Context, folded Position, inAnyCase bool) (over bool, err error) {
	if !sleep(ctx, lookAgain) {
		return false, translate(ctx.Err(), "read the history of "+j.cfg.Sandbox)
	}
	there, err := j.conn.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, folded)
	if err != nil || there && !inAnyCase {
		return false, err
	}
	entries, err := j.conn.wholeHistory(ctx, j.cfg.Tenant, j.cfg.Sandbox)
	if err != nil {
		return false, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	to := uint64(0)
	if len(entries) > 0 {
		to = entries[len(entries)-1].record
	}
	if j.at.Record > to && j.at.Record > folded.Record {
		return false, nil // it was written meanwhile, and is read again
	}
	j.conn.log.Warn("the log does not have what was folded from it: it is folded again from its beginning",
		"sandbox", j.cfg.Sandbox, "folded", folded.Record, "log", to)
	j.state, j.at, j.doubt = &protocol.State{}, Position{}, Position{}
	if j.cfg.OnReset != nil {
		j.cfg.OnReset()
	}
	j.applyAllLocked(entries)
	return true, nil
}

// wholeHistory reads a history from its beginning: in batches, from any replica, and what that may lack
// from the leader.
func (c *Conn) wholeHistory(ctx context.Context, tenant, sandbox string) ([]entry, error) {
	entries, err := c.history(ctx, tenant, sandbox, 0)
	if err != nil || c.singleReplica() {
		return entries, err
	}
	after := uint64(0)
	if len(entries) > 0 {
		after = entries[len(entries)-1].record
	}
	tail, err := c.historyTail(ctx, tenant, sandbox, after)
	return append(entries, tail...), err
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
		case !sleep(ctx, lookAgain):
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
