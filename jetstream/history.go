package jetstream

import (
	"context"
	"errors"

	"github.com/boxfleet/boxfleet/protocol"
)

// A history is read in the order of its records: first the segments, then the log. Each message names its predecessor,
// so a reader notices missing messages, even messages that are moved to segments while it reads. It then reads the
// missing messages from their segments.

// historyReader reads one history from a record on.
type historyReader struct {
	histories       *Histories
	tenant, sandbox string
	at              uint64                       // record of the last message that was visited
	visit           func(e *entry) (bool, error) // returns false to end the reading
	moved           func(context.Context) error  // called once, before segments are read; may be nil
	vouched         uint64                       // all segments before this record have been read
	ended           bool                         // visit returned false
}

// errMoved says that messages are missing before the current one.
var errMoved = errors.New("messages are missing")

// Histories reads the histories of sandboxes: the segments and the event log together.
type Histories struct {
	*streams

	events   *EventLog
	segments *segments
}

func (h *Histories) historyReader(
	tenant, sandbox string, after uint64, visit func(e *entry) (bool, error),
) *historyReader {
	return &historyReader{histories: h, tenant: tenant, sandbox: sandbox, at: after, visit: visit}
}

func (r *historyReader) take(e *entry) (bool, error) {
	r.at = e.record
	more, err := r.visit(e)
	r.ended = r.ended || !more
	return more, err
}

// joins reports whether no message is missing between the last visited one and e, as far as the reader knows.
func (r *historyReader) joins(e *entry) bool {
	return e.record == r.vouched || e.afterKnown && e.after <= r.at
}

// bulk reads many messages with each request, from any replica. The newest messages may be missing.
func (r *historyReader) bulk(ctx context.Context) error {
	for !r.ended {
		var next uint64
		subject := protocol.EventSubject(r.tenant, r.sandbox)
		err := r.histories.scan(ctx, protocol.StreamEvents, subject, r.at+1, func(m *stored) (bool, error) {
			e, err := r.histories.events.entryOf(m)
			if err != nil {
				return false, err
			}
			if !r.joins(&e) {
				next = e.record
				return false, errMoved
			}
			return r.take(&e)
		})
		if err != errMoved {
			return err
		}
		if err := r.fill(ctx, next); err != nil {
			return err
		}
	}
	return nil
}

// step reads the next message from the log's leader. none is true at the end of the history.
func (r *historyReader) step(ctx context.Context) (none bool, err error) {
	for !r.ended {
		next, err := r.histories.events.historyNext(ctx, r.tenant, r.sandbox, r.at)
		if err != nil || len(next) == 0 {
			return true, err
		}
		if r.joins(&next[0]) {
			_, err := r.take(&next[0])
			return false, err
		}
		if err := r.fill(ctx, next[0].record); err != nil {
			return true, err
		}
	}
	return true, nil
}

// tail reads one message after another from the leader. It misses no message, and is fast if few messages are new.
func (r *historyReader) tail(ctx context.Context) error {
	for {
		if none, err := r.step(ctx); none || err != nil {
			return err
		}
	}
}

// shortRead is how many messages are read one by one before the others are read in bulk. For each bulk request the
// server counts the remaining messages, which takes milliseconds in a large log: too long for short histories, which
// are the most frequent.
const shortRead = 8

// all reads a few messages one by one, and the others in bulk. At the end it reads from the leader, because the replica
// that answered may not have the newest messages.
func (r *historyReader) all(ctx context.Context) error {
	for range shortRead {
		if none, err := r.step(ctx); none || err != nil {
			return err
		}
	}
	if err := r.bulk(ctx); err != nil || r.histories.singleReplica() {
		return err
	}
	return r.tail(ctx)
}

// fill visits the messages that were moved to segments, between the last visited message and a record.
func (r *historyReader) fill(ctx context.Context, before uint64) error {
	if moved := r.moved; moved != nil {
		r.moved = nil
		if err := moved(ctx); err != nil {
			return err
		}
	}
	err := r.histories.segments.readMoved(ctx, r.tenant, r.sandbox, r.at, before, r.take)
	if err == nil {
		r.vouched = before
	}
	return err
}

// History reads the batches of a sandbox's history after a record. In a cluster the newest batches may be missing;
// [Histories.HistoryTail] reads them too.
func (h *Histories) History(
	ctx context.Context,
	tenant, sandbox string,
	after uint64,
) (batches []*protocol.Batch, err error) {
	err = h.historyReader(tenant, sandbox, after, gather(&batches)).bulk(ctx)
	return batches, err
}

// HistoryTail is like History, but reads one message after another from the stream's leader. It misses no batch, and is
// fast if few batches are new.
func (h *Histories) HistoryTail(
	ctx context.Context,
	tenant, sandbox string,
	after uint64,
) (batches []*protocol.Batch, err error) {
	err = h.historyReader(tenant, sandbox, after, gather(&batches)).tail(ctx)
	return batches, err
}

// ReadHistory visits the batches of a sandbox's history after a record, in order, up to the end at the time of the
// call, until visit returns false. It has at most a few MiB in memory at once. visit may take a long time.
func (h *Histories) ReadHistory(
	ctx context.Context,
	tenant, sandbox string,
	after uint64,
	visit func(*protocol.Batch) bool,
) error {
	r := h.historyReader(tenant, sandbox, after, func(e *entry) (bool, error) {
		return e.batch == nil || visit(e.batch), nil
	})
	return r.all(ctx)
}

// ReadEvents is like ReadHistory, but starts with the message that has an event. It may also visit a few earlier
// messages. If the event is no longer stored, ReadEvents starts with a later event.
func (h *Histories) ReadEvents(
	ctx context.Context,
	tenant, sandbox string,
	from uint64,
	visit func(*protocol.Batch) bool,
) error {
	after, err := h.segments.segmentsBefore(ctx, tenant, sandbox, from)
	if err != nil {
		return err
	}
	return h.ReadHistory(ctx, tenant, sandbox, after, visit)
}

// gather returns a function that appends the visited batches to a slice.
func gather(to *[]*protocol.Batch) func(e *entry) (bool, error) {
	return func(e *entry) (bool, error) {
		if e.batch != nil {
			*to = append(*to, e.batch)
		}
		return true, nil
	}
}

// historyNext reads the message that follows a record in a history, from the stream's leader. It returns an empty slice
// at the end of the history.
func (l *EventLog) historyNext(ctx context.Context, tenant, sandbox string, after uint64) ([]entry, error) {
	m, err := l.nextOnSubject(ctx, protocol.StreamEvents, protocol.EventSubject(tenant, sandbox), after+1)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e, err := l.entryOf(m)
	if err != nil {
		return nil, err
	}
	return []entry{e}, nil
}

// LastBatch reads the last batch of a sandbox's history, from the leader. Error: not_found.
func (h *Histories) LastBatch(ctx context.Context, tenant, sandbox string) (*protocol.Batch, error) {
	e, err := h.events.lastEntry(ctx, tenant, sandbox)
	if err == nil && e.batch == nil {
		err = protocol.Errorf(protocol.NotFound, "", "could not read the last message of sandbox %s", sandbox)
	}
	return e.batch, err
}

// Batch reads the batch of a sandbox's history at a record, in the log or in a segment. Error: not_found.
func (h *Histories) Batch(ctx context.Context, tenant, sandbox string, record uint64) (*protocol.Batch, error) {
	b, err := h.events.Record(ctx, record)
	if protocol.CodeOf(err) == protocol.NotFound {
		e, moved := h.segments.movedEntry(ctx, tenant, sandbox, record)
		if moved != nil {
			return nil, moved
		}
		if e != nil && e.batch != nil {
			return e.batch, nil
		}
	}
	if err == nil && (b.Tenant != tenant || b.Sandbox != sandbox) {
		return nil, protocol.Errorf(protocol.NotFound, "", "record %d belongs to another sandbox than %s", record, sandbox)
	}
	return b, err
}
