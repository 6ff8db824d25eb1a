package jetstream

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// walkBack is how many of the newest messages are read before a binary search for an event begins. Pollers usually want
// one of the newest events.
const walkBack = 4

// ReadEventsAt is like [Histories.ReadEvents], but visits no messages before the event: it starts with the message that
// has the event, or with the oldest stored message. So reading a history page by page reads each message about once.
func (h *Histories) ReadEventsAt(
	ctx context.Context,
	tenant, sandbox string,
	from uint64,
	visit func(*protocol.Batch) bool,
) error {
	after, err := h.recordBefore(ctx, tenant, sandbox, from)
	if err != nil {
		return err
	}
	return h.ReadHistory(ctx, tenant, sandbox, after, visit)
}

// recordBefore returns a record of the log shortly before the message that has an event.
func (h *Histories) recordBefore(ctx context.Context, tenant, sandbox string, event uint64) (uint64, error) {
	low, err := h.segments.segmentsBefore(ctx, tenant, sandbox, event)
	if err != nil || event <= 1 {
		return low, err
	}
	e, err := h.events.lastEntry(ctx, tenant, sandbox)
	for range walkBack {
		if err != nil || e.batch == nil || !e.afterKnown {
			break
		}
		if e.batch.First() <= event || e.after <= low {
			return max(low, e.after), nil
		}
		m, missing := h.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": e.after})
		if missing != nil {
			break // the message was moved to a segment, or the read failed and the next read reports the error
		}
		e, err = h.events.entryOf(m)
	}
	if protocol.CodeOf(err) == protocol.NotFound {
		return low, nil
	}
	if err != nil {
		return 0, err
	}
	for high := e.record; high > low+1; {
		middle := low + (high-low)/2
		next, err := h.events.historyNext(ctx, tenant, sandbox, middle)
		switch {
		case err != nil:
			return 0, err
		case len(next) == 0 || next[0].record >= high || next[0].batch == nil || next[0].batch.First() > event:
			high = middle
		case next[0].batch.Last() >= event:
			return next[0].record - 1, nil
		default:
			low = next[0].record
		}
	}
	return low, nil
}

// OldestEvent returns the number of the oldest stored event of a history, in the log or in a segment. Error:
// not_found.
func (h *Histories) OldestEvent(ctx context.Context, tenant, sandbox string) (oldest uint64, err error) {
	b, err := h.events.FirstBatch(ctx, tenant, sandbox)
	if err != nil || b.First() == 1 {
		return 1, err
	}
	m, err := h.segments.manifest(ctx, tenant, sandbox)
	if err != nil {
		return 0, err
	}
	oldest = b.First()
	err = m.each(ctx, 0, func(s *segment) (bool, error) {
		if s.FirstEvent != 0 {
			oldest = min(oldest, s.FirstEvent)
		}
		return s.FirstEvent == 0, nil
	})
	return oldest, err
}
