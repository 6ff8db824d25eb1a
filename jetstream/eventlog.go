package jetstream

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// EventLog appends to the event log, reads its messages and follows it. It reads only the messages that are still in
// the log; [Histories] also reads the messages that were moved to segments.
type EventLog struct {
	*streams

	writers *Writers
}

// Append writes one batch to its sandbox's history, without a signature. An append is the commit point of every
// decision. expected is the record (stream sequence) of the history's last message, or 0 if the history is empty.
// Append returns the new record. Errors: [ErrConflict] if another writer was first; after any other error the outcome
// is unknown until the caller reads the history.
func (l *EventLog) Append(ctx context.Context, b *protocol.Batch, expected uint64) (uint64, error) {
	return l.publish(ctx, messageOf(b, b.Encode(), nil), int64(expected))
}

// messageOf returns the message of a batch. s may be nil.
func messageOf(b *protocol.Batch, payload []byte, s *protocol.Signature) *nats.Msg {
	m := nats.NewMsg(protocol.AppendSubject(b.Writer, b.Tenant, b.Sandbox))
	for k, v := range b.Headers() {
		m.Header[k] = []string{v}
	}
	if s != nil {
		m.Header[protocol.HeaderSignature] = []string{s.String()}
	}
	m.Data = payload
	return m
}

// errForeign says that a batch names another sandbox than its subject. NATS permissions protect only the subject.
func errForeign(b *protocol.Batch) error {
	return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonNotProven,
		"it names tenant %.80q and sandbox %.80q, but its subject names another sandbox", b.Tenant, b.Sandbox)
}

// batch returns the batch of a message, or an error if the message cannot be decoded. It returns nil if the batch names
// another sandbox than the subject.
func (l *EventLog) batch(e *entry) (*protocol.Batch, error) {
	if e.foreign != nil {
		l.writers.refusals.add(l.log, e, e.foreign)
	}
	return e.batch, e.broken
}

// Record reads the batch that is stored at a record. It does not verify who wrote the batch. Error: not_found.
func (l *EventLog) Record(ctx context.Context, record uint64) (*protocol.Batch, error) {
	m, err := l.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": record})
	if err != nil {
		return nil, err
	}
	b, err := l.batch(entryOf(m))
	if b == nil && err == nil {
		err = protocol.Errorf(protocol.NotFound, "", "the batch at record %d names another sandbox than its subject", record)
	}
	return b, err
}

// LastRecord returns the highest record that the log ever had.
func (l *EventLog) LastRecord(ctx context.Context) (uint64, error) {
	return l.lastSequence(ctx, protocol.StreamEvents)
}

// BatchBetween reports whether the log has a batch after one record and up to another one. It skips the messages that
// [EventLog.FollowEvents] does not deliver.
func (l *EventLog) BatchBetween(ctx context.Context, after, last uint64) (found bool, err error) {
	visit := func(m *stored) bool {
		after = m.sequence
		found = after <= last && entryOf(m).batch != nil
		return !found && after < last
	}
	// A worker can store any number of messages that are no batches, so read them in pages.
	err = l.scan(ctx, protocol.StreamEvents, protocol.EventFilter, after+1, func(m *stored) (bool, error) {
		return visit(m), nil
	})
	for err == nil && !found && after < last { // the replica that answered may not have the newest messages
		m, err := l.nextOnSubject(ctx, protocol.StreamEvents, protocol.EventFilter, after+1)
		if protocol.CodeOf(err) == protocol.NotFound {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		visit(m)
	}
	return found, err
}

// FollowEvents reads the batches of all histories from a record on, in the order of the log, and then new batches,
// until ctx ends. It does not verify who wrote the batches: a [Journal] that receives them does. It fails if the log no
// longer has the last handled message; [IsRewound] recognizes this error. caughtUp is called once, when all batches
// that were in the log at the start have been handled and no other batch is waiting.
func (l *EventLog) FollowEvents(ctx context.Context, from uint64, handle func(*protocol.Batch), caughtUp func()) error {
	return l.follow(ctx, protocol.StreamEvents, protocol.EventFilter, from, func(m *stored) {
		e := entryOf(m)
		b, err := l.batch(e)
		if err != nil {
			l.log.Error("could not decode a message of the event log", "record", m.sequence, "subject", m.subject,
				"error", err)
		}
		if b == nil {
			return
		}
		for {
			err := l.writers.identify(ctx, e)
			if err == nil {
				handle(b)
				return
			}
			l.log.Warn("could not find out who wrote a message of the event log; asking again", "record", m.sequence,
				"error", err)
			if !l.sleep(ctx, retryPause) {
				return // the follower ends, and does not count the message as handled
			}
		}
	}, caughtUp)
}

// Live receives batches that are appended to a sandbox's history from now on, over core NATS, until stop is called. It
// replays nothing. Batches are missed while the connection is down, and if the log's leader dies between storing a
// batch and publishing it. Callers therefore also read the history after [Conn.OnReconnect], when an event number is
// missing, and when no batch has arrived for a while. tenant and sandbox may be "*".
//
// A batch with record 0 is only a hint that there may be news: its publisher set headers that only the server may set,
// so its record is unknown.
func (l *EventLog) Live(tenant, sandbox string, handle func(*protocol.Batch)) (stop func(), err error) {
	sub, err := l.nc.Subscribe(protocol.LiveSubject(tenant, sandbox), func(m *nats.Msg) {
		record, after := republished(m)
		b, err := l.batch(entryOf(&stored{subject: m.Subject, sequence: record, header: m.Header, data: m.Data}))
		if err != nil {
			l.log.Error("could not decode a batch that the event log republished", "record", record, "error", err)
		}
		if b != nil {
			b.Proof.After = after
			handle(b)
		}
	})
	if err != nil {
		return nil, translate(err, "listen for events")
	}
	if err := sub.SetPendingLimits(1<<20, 256<<20); err != nil {
		return nil, translate(err, "listen for events")
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is closed
}

// republished returns the record of a message that the server republished, and the record of the message before it in
// the history. Both are 0 if the publisher may have set them.
func republished(m *nats.Msg) (record, after uint64) {
	if !plain(m) {
		return 0, 0
	}
	var values [4]string
	for i, name := range []string{"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Last-Sequence"} {
		values[i] = m.Header.Get(name)
	}
	tenant, sandbox, ok := protocol.SplitEventSubject(m.Subject)
	if !ok || values[0] != protocol.StreamEvents || values[1] != protocol.EventSubject(tenant, sandbox) {
		return 0, 0
	}
	record, malformed := strconv.ParseUint(values[2], 10, 64)
	after, alsoMalformed := strconv.ParseUint(values[3], 10, 64)
	if malformed != nil || alsoMalformed != nil {
		return 0, 0
	}
	return record, after
}

// Flush waits until the server has processed everything that was sent before the call, including subscriptions.
func (c *connection) Flush(ctx context.Context) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	return translate(c.nc.FlushWithContext(ctx), "flush the connection to NATS")
}

// purge removes the messages of a subject except the newest. keep is the number of messages that stay.
func (s *streams) purge(ctx context.Context, name, subject string, keep uint64) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return translate(err, "purge "+name)
	}
	opts := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(subject)}
	if keep > 0 {
		opts = append(opts, jetstream.WithPurgeKeep(keep))
	}
	return translate(stream.Purge(ctx, opts...), "purge "+name)
}

// retryPause is the pause before a request to NATS that failed is repeated. A read may come too early, while a cluster
// is still writing. Such a read is repeated after firstPause, and the pause doubles up to retryPause.
const (
	retryPause = 200 * time.Millisecond
	firstPause = time.Millisecond
)
