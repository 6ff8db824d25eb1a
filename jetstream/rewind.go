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

// The log can lose messages that were already folded: when a backup is restored, or when a power loss destroys the last
// acknowledged writes. A coordinator or a worker that kept running, or that started from a snapshot, has then folded
// the end of a history that no longer exists. It cannot append to that history, because each append expects a record
// that the log no longer has. Journals and followers therefore check whether the log still has the messages that they
// read. If not, the history is folded again from its beginning.

// Position is a point in the log: a record and the id of its batch. The id distinguishes the record from a record with
// the same number in another history of the log. The id is empty if it is unknown.
type Position struct {
	Record uint64
	Batch  string
}

// recheckAfter is the pause before the leader is asked again whether messages are lost. A new leader may be behind for
// a moment.
const recheckAfter = 250 * time.Millisecond

// entry is a message of a history.
type entry struct {
	record          uint64
	time            time.Time // when the message was stored; zero: unknown
	tenant, sandbox string    // as the message's subject names them

	batch   *protocol.Batch // nil if the message is foreign or broken
	foreign error           // not nil if the batch names another sandbox than its subject
	broken  error           // not nil if the message cannot be decoded

	after      uint64 // the history's last record, as the message's writer expected it
	afterKnown bool   // after has a value
	proof      *protocol.Proof
	message    *stored // the message itself
}

// headerOtherSubject makes the server compare the expected record with the last record of another subject.
const headerOtherSubject = "Nats-Expected-Last-Subject-Sequence-Subject"

func entryOf(m *stored) *entry {
	e := &entry{record: m.sequence, time: m.time, message: m, proof: &protocol.Proof{Hash: protocol.PayloadHash(m.data)}}
	e.tenant, e.sandbox, _ = protocol.SplitEventSubject(m.subject) // elsewhere both are empty: the message is foreign
	e.batch, e.broken = protocol.DecodeBatch(m.data, m.sequence)
	if b := e.batch; b != nil {
		b.Proof = e.proof
		if b.Tenant != e.tenant || b.Sandbox != e.sandbox {
			e.batch, e.foreign = nil, errForeign(b)
		}
	}
	// The server has checked the expected record, so it was the record of the history's last message.
	if text := m.header.Get(jetstream.ExpectedLastSubjSeqHeader); text != "" && m.header.Get(headerOtherSubject) == "" {
		after, malformed := strconv.ParseUint(text, 10, 64)
		e.after, e.afterKnown = after, malformed == nil
	}
	if text := m.header.Get(protocol.HeaderSignature); text != "" {
		var err error
		if e.proof.Signature, err = protocol.ParseSignature(text); err != nil {
			e.proof.Signature, e.proof.Fault = &protocol.Signature{Key: "malformed"}, protocol.AsError(err)
		}
		if e.time.IsZero() {
			// Without a valid time the message counts as stored before its key was registered.
			e.time, _ = time.Parse(time.RFC3339Nano, m.header.Get("Nats-Time-Stamp"))
		}
	}
	return e
}

// position returns the entry's position in the log.
func (e *entry) position() Position {
	p := Position{Record: e.record}
	if e.batch != nil {
		p.Batch = e.batch.ID
	}
	return p
}

// isAt reports whether an entry is at a position. A position without a batch matches any entry of that record.
func (e *entry) isAt(p Position) bool {
	return e.record == p.Record && (p.Batch == "" || e.batch != nil && e.batch.ID == p.Batch)
}

// isAt reports whether a message is at a position. It returns an error if the message cannot be decoded and is not
// refused.
func (l *EventLog) isAt(m *stored, p Position) (bool, error) {
	e := entryOf(m)
	if e.broken != nil && !l.writers.knownRules().Signed {
		return false, e.broken
	}
	return e.isAt(p), nil
}

// lastEntry reads the last message of a history from the leader. Error: not_found.
func (l *EventLog) lastEntry(ctx context.Context, tenant, sandbox string) (entry, error) {
	m, err := l.lastOnSubject(ctx, protocol.StreamEvents, protocol.EventSubject(tenant, sandbox))
	if err != nil {
		return entry{}, err
	}
	return *entryOf(m), nil
}

// holds reports whether a position of a sandbox's history still exists, in the log or in a segment. If sandbox is
// empty, the position may belong to any sandbox, and only the log is checked. A position of a purged history no longer
// exists.
func (sg *segments) holds(ctx context.Context, tenant, sandbox string, p Position) (bool, error) {
	m, err := sg.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": p.Record})
	if protocol.CodeOf(err) == protocol.NotFound {
		if sandbox == "" {
			return false, nil
		}
		e, err := sg.movedEntry(ctx, tenant, sandbox, p.Record)
		return e != nil && e.isAt(p), err
	}
	if err != nil {
		return false, err
	}
	if sandbox != "" && m.subject != protocol.EventSubject(tenant, sandbox) {
		return false, nil
	}
	return sg.events.isAt(m, p)
}

// Position returns the position of the journal's fold.
func (j *Journal) Position() Position {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.at
}

// errRewound says that a stream no longer has messages that a follower read from it: a server lost them, or the stream
// was replaced by another one.
var errRewound = protocol.Errorf(protocol.Unavailable, "rewound",
	"the stream no longer has messages that were read from it")

// IsRewound reports whether a follower ended because the log no longer has messages that it handled. The caller must
// discard everything that it derived from these messages, and follow the log from its beginning.
func IsRewound(err error) bool { return err == error(errRewound) }

// check returns errRewound if the stream no longer has the last handled message.
func (f *follower) check(ctx context.Context) error {
	if f.next == 1 {
		return nil
	}
	for checks := 0; ; checks++ {
		lost, err := f.lost(ctx)
		switch {
		case err != nil || !lost:
			return err
		case checks == 1:
			return errRewound
		case !backoff.Sleep(ctx, recheckAfter):
			return ctx.Err()
		}
	}
}

func (f *follower) lost(ctx context.Context) (bool, error) {
	last, err := f.streams.lastSequence(ctx, f.stream)
	if err != nil || last < f.next-1 {
		return err == nil, err
	}
	if f.handled.IsZero() {
		return false, nil
	}
	m, err := f.streams.leaderGet(ctx, f.stream, map[string]any{"seq": f.next - 1})
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil // the message was purged or has expired
	}
	return err == nil && !m.time.Equal(f.handled), err
}

// lastSequence asks a stream's leader for the sequence of the last message that the stream stored. That message may
// have been removed since.
func (s *streams) lastSequence(ctx context.Context, stream string) (uint64, error) {
	reply, err := s.ask(ctx, &nats.Msg{Subject: "$JS.API.STREAM.INFO." + stream})
	if err != nil {
		return 0, translate(err, "read the state of "+stream)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		State struct {
			Last uint64 `json:"last_seq"`
		} `json:"state"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, protocol.Errorf(protocol.Internal, "", "read the state of %s: %v", stream, err)
	}
	if answer.Error != nil {
		return 0, translate(answer.Error, "read the state of "+stream)
	}
	return answer.State.Last, nil
}
