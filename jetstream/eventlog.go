package jetstream

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// EventLog appends to the event log, reads its messages and follows it. It has only the messages that are still in the
// log; [Histories] also has those that were moved to segments.
type EventLog struct{ *streams }

// Append writes one batch to its sandbox's history: the commit point of every decision. expected is the record
// (stream sequence) of the history's last message, 0 for none. It returns the new record. Errors: [ErrConflict]
// if another writer was first; after any other error the outcome is unknown until the caller reads the history.
func (l *EventLog) Append(ctx context.Context, b *protocol.Batch, expected uint64) (uint64, error) {
	m := nats.NewMsg(protocol.AppendSubject(b.Writer, b.Tenant, b.Sandbox))
	for k, v := range b.Headers() {
		m.Header[k] = []string{v}
	}
	m.Data = b.Encode()
	return l.publish(ctx, m, int64(expected))
}

// batchOf decodes a message of the event log, stored or republished. Permissions protect the subject, so a batch that
// names another sandbox than its subject is ignored: it returns nil.
func (l *EventLog) batchOf(m *stored) (*protocol.Batch, error) {
	b, err := protocol.DecodeBatch(m.data, m.sequence)
	if err != nil {
		return nil, err
	}
	tenant, sandbox, _ := protocol.SplitEventSubject(m.subject)
	if b.Tenant != tenant || b.Sandbox != sandbox {
		l.log.Error("a batch of the event log names another sandbox than its subject", "subject", m.subject,
			"record", m.sequence, "tenant", b.Tenant, "sandbox", b.Sandbox, "writer", b.Writer)
		return nil, nil
	}
	return b, nil
}

// Record reads the batch at one record. Error: not_found.
func (l *EventLog) Record(ctx context.Context, record uint64) (*protocol.Batch, error) {
	m, err := l.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": record})
	if err != nil {
		return nil, err
	}
	b, err := l.batchOf(m)
	if b == nil && err == nil {
		err = protocol.Errorf(protocol.NotFound, "", "record %d names another sandbox than its subject", record)
	}
	return b, err
}

// LastRecord returns the highest record that the log has or had.
func (l *EventLog) LastRecord(ctx context.Context) (uint64, error) {
	return l.lastSequence(ctx, protocol.StreamEvents)
}

// FollowEvents reads every history from a record on, in the order of the log, and then new batches, until ctx ends or
// the log no longer has the last handled message: [IsRewound]. caughtUp is called once, after all batches that were in
// the log at the start have been handled and none is waiting.
func (l *EventLog) FollowEvents(ctx context.Context, from uint64, handle func(*protocol.Batch), caughtUp func()) error {
	return l.follow(ctx, protocol.StreamEvents, protocol.EventFilter, from, func(m *stored) {
		b, err := l.batchOf(m)
		if err != nil {
			l.log.Error(
				"could not read an entry of the event log",
				"record",
				m.sequence,
				"subject",
				m.subject,
				"error",
				err,
			)
		}
		if b != nil {
			handle(b)
		}
	}, caughtUp)
}

// Live receives batches that are appended to a sandbox's history from now on, over core NATS, until stop is called.
// It replays nothing. Messages are lost while the connection is away, and if the log's leader dies after it stored a
// batch and before it published it. So callers read the history after [Conn.OnReconnect], if a number is missing, and
// after a silence. tenant and sandbox may be "*".
func (l *EventLog) Live(tenant, sandbox string, handle func(*protocol.Batch)) (stop func(), err error) {
	sub, err := l.nc.Subscribe(protocol.LiveSubject(tenant, sandbox), func(m *nats.Msg) {
		record, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
		if err != nil {
			return // not republished by the server
		}
		b, err := l.batchOf(&stored{subject: m.Subject, sequence: record, data: m.Data})
		if err != nil {
			l.log.Error("could not read a live event", "record", record, "error", err)
		}
		if b != nil {
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

// Flush waits until the server has processed everything sent before, including subscriptions.
func (c *connection) Flush(ctx context.Context) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	return translate(c.nc.FlushWithContext(ctx), "flush")
}

// purge removes the messages of a subject except the newest keep.
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

// retryPause is the pause before NATS is asked again for something it failed to do. Something that a cluster is just
// writing is read again after firstPause, which doubles up to retryPause.
const (
	retryPause = 200 * time.Millisecond
	firstPause = time.Millisecond
)
