package jetstream

import (
	"context"
	"sync/atomic"

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
	unmoved         *byte                        // the bulk request whose remaining messages are all still in the log
	ended           bool                         // visit returned false
}

// Histories reads the histories of sandboxes: the segments and the event log together.
type Histories struct {
	*streams

	events   *EventLog
	segments *segments
	writers  *Writers
	journals *Journals
	judge    atomic.Pointer[Judge] // nil: the history is folded for each reader
	whole    wholeFolds
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

// confirmed returns the entry of a message. A message names the record after which its writer expected to append. If
// that is not the record of the last visited message, confirmed makes sure that the server checked the expectation.
func (r *historyReader) confirmed(ctx context.Context, m *stored) (*entry, error) {
	e := entryOf(m)
	if !e.afterKnown || e.after == r.at {
		return e, nil
	}
	m, err := r.histories.confirm(ctx, protocol.StreamEvents, m)
	if err != nil {
		return nil, err
	}
	return entryOf(m), nil
}

// bulk reads many messages with each request, from any replica. The newest messages may be missing.
func (r *historyReader) bulk(ctx context.Context) error {
	if r.ended {
		return nil
	}
	subject := protocol.EventSubject(r.tenant, r.sandbox)
	return r.histories.scan(ctx, protocol.StreamEvents, subject, r.at+1, func(m *stored) (bool, error) {
		e, err := r.confirmed(ctx, m)
		if err != nil {
			return false, err
		}
		if m.batch != r.unmoved && !r.joins(e) {
			last, err := r.fill(ctx, e.record)
			if err != nil || r.ended {
				return false, err
			}
			// Compaction moves the oldest messages first. If no segment reaches e, no segment has a message after e.
			if last < e.record {
				r.unmoved = m.batch
			}
		}
		return r.take(e)
	})
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
		if _, err := r.fill(ctx, next[0].record); err != nil {
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

// The method "all" reads a few messages one by one, and the others in bulk. At the end it reads from the leader,
// because the replica that answered may not have the newest messages.
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

// fill visits the messages that were moved to segments, between the last visited message and a record. last is the
// newest record that is in a segment.
func (r *historyReader) fill(ctx context.Context, before uint64) (last uint64, err error) {
	if moved := r.moved; moved != nil {
		r.moved = nil
		if err := moved(ctx); err != nil {
			return 0, err
		}
	}
	last, err = r.histories.segments.readMoved(ctx, r.tenant, r.sandbox, r.at, before, r.take)
	if err == nil {
		r.vouched = before
	}
	return last, err
}

// History reads the batches of a sandbox's history after a record. In a cluster the newest batches may be missing;
// [Histories.HistoryTail] reads them too.
func (h *Histories) History(
	ctx context.Context,
	tenant, sandbox string,
	after uint64,
) (batches []*protocol.Batch, err error) {
	err = h.accepted(ctx, tenant, sandbox, after, gather(&batches)).bulk(ctx)
	return batches, err
}

// HistoryTail is like History, but reads one message after another from the stream's leader. It misses no batch, and is
// fast if few batches are new.
func (h *Histories) HistoryTail(
	ctx context.Context,
	tenant, sandbox string,
	after uint64,
) (batches []*protocol.Batch, err error) {
	err = h.accepted(ctx, tenant, sandbox, after, gather(&batches)).tail(ctx)
	return batches, err
}

// ReadHistory visits the batches of a sandbox's history after a record, in order, until visit returns false. It ends at
// the last batch at the time of the call. It has at most a few MiB in memory at once. visit may take a long time.
func (h *Histories) ReadHistory(
	ctx context.Context,
	tenant, sandbox string,
	after uint64,
	visit func(*protocol.Batch) bool,
) error {
	return h.accepted(ctx, tenant, sandbox, after, visit).all(ctx)
}

// accepted returns a reader that calls visit only for batches that are part of the history.
func (h *Histories) accepted(
	ctx context.Context, tenant, sandbox string, after uint64, visit func(*protocol.Batch) bool,
) *historyReader {
	v := h.verdicts(tenant, sandbox)
	return h.historyReader(tenant, sandbox, after, func(e *entry) (bool, error) {
		accepts, err := v.accepts(ctx, e)
		if err != nil {
			return false, err
		}
		return !accepts || visit(e.batch), nil
	})
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
func gather(to *[]*protocol.Batch) func(b *protocol.Batch) bool {
	return func(b *protocol.Batch) bool {
		*to = append(*to, b)
		return true
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
	return []entry{*entryOf(m)}, nil
}

// LastBatch reads the last batch of a sandbox's history, from the leader. Error: not_found.
func (h *Histories) LastBatch(ctx context.Context, tenant, sandbox string) (*protocol.Batch, error) {
	e, err := h.events.lastEntry(ctx, tenant, sandbox)
	if err != nil {
		return nil, err
	}
	v := h.verdicts(tenant, sandbox)
	accepts, err := v.accepts(ctx, &e)
	if err != nil || accepts {
		return e.batch, err
	}
	if err := v.fold(ctx, e.record); err != nil {
		return nil, err
	}
	if v.judged.Last == 0 || v.judged.Last >= e.record {
		return nil, protocol.Errorf(protocol.NotFound, "", "could not read the last message of sandbox %s", sandbox)
	}
	return h.Batch(ctx, tenant, sandbox, v.judged.Last)
}

// Batch reads the batch of a sandbox's history at a record, in the log or in a segment. Error: not_found.
func (h *Histories) Batch(ctx context.Context, tenant, sandbox string, record uint64) (*protocol.Batch, error) {
	e, err := h.segments.at(ctx, tenant, sandbox, record)
	if err != nil {
		return nil, err
	}
	v := h.verdicts(tenant, sandbox)
	accepts, err := v.accepts(ctx, e)
	if err == nil && !accepts {
		err = protocol.Errorf(protocol.NotFound, "", "the batch at record %d is not part of the history of sandbox %s",
			record, sandbox)
	}
	if err != nil {
		return nil, err
	}
	return e.batch, nil
}
