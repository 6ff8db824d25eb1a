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
	v := h.verdicts(tenant, sandbox)
	for range walkBack {
		if err != nil || !e.afterKnown {
			break
		}
		if accepts, refused := v.accepts(ctx, &e); !accepts || refused != nil {
			err = refused
			break
		}
		if e.batch.First() <= event || e.after <= low {
			return max(low, e.after), nil
		}
		m, missing := h.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": e.after})
		if missing != nil {
			break // the message was moved to a segment, or the read failed; the next read then reports the error
		}
		e = *entryOf(m)
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
		accepts := false
		if err == nil && len(next) > 0 {
			accepts, err = v.accepts(ctx, &next[0])
		}
		switch {
		case err != nil:
			return 0, err
		case !accepts || next[0].record >= high || next[0].batch.First() > event:
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
	b, missing := h.FirstBatch(ctx, tenant, sandbox)
	if missing != nil && protocol.CodeOf(missing) != protocol.NotFound {
		return 0, missing
	}
	if missing == nil && b.First() == 1 {
		return 1, nil
	}
	m, err := h.segments.manifest(ctx, tenant, sandbox)
	if err != nil {
		return 0, err
	}
	if missing == nil {
		oldest = b.First()
	}
	err = m.each(ctx, 0, func(s *segment) (bool, error) {
		if s.FirstEvent != 0 && (oldest == 0 || s.FirstEvent < oldest) {
			oldest = s.FirstEvent
		}
		return s.FirstEvent == 0, nil
	})
	if err == nil && oldest == 0 {
		err = missing
	}
	return oldest, err
}
