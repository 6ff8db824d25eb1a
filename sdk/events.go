package sdk

import (
	"context"
	"iter"

	"github.com/boxfleet/boxfleet/protocol"
)

// Events reads the numbered history of a sandbox, by its id or name, from event number from on (0 and 1 mean the first):
// what is there, marked Replay, and with follow what comes, in one sequence without gap or repeat.
// While nothing happens it costs one small question to the log for each followed sandbox, ever more
// rarely: once a minute in the end. Without follow it ends with the last event there is; with
// follow it ends behind the event of the sandbox's deletion, or with ctx. A slow reader costs
// bounded memory once it follows.
//
// The sequence ends with the first error. Errors: not_found where there is no history, because the
// sandbox never was or its history is no longer kept; out_of_range with reason
// sequence_beyond_end where from is greater than the next number, and with sequence_not_kept where
// the history begins later; its message says the oldest number that is kept.
func (c *Client) Events(ctx context.Context, sandbox string, from uint64, follow bool) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		if err := c.events(ctx, sandbox, max(from, 1), follow, yield); err != nil {
			yield(protocol.Event{}, failed(ctx, err, "events of "+sandbox))
		}
	}
}

func (c *Client) events(ctx context.Context, sandbox string, from uint64, follow bool, yield func(protocol.Event, error) bool) error {
	sandbox, err := c.idOf(ctx, sandbox)
	if err != nil {
		return err
	}
	var w *follower
	if follow {
		f, err := c.feed(sandbox)
		if err != nil {
			return err
		}
		defer f.release()
		w = f.follow(0, 0)
		defer w.close()
	}
	end, goOn, err := c.replayEvents(ctx, sandbox, from, yield)
	if err != nil || !goOn || w == nil {
		return err
	}
	w.last, w.record = end.Last(), end.Record
	w.feed.knows(w.last, w.record)
	for {
		if end.Events[len(end.Events)-1].State == protocol.StateDeleted {
			return nil
		}
		if end, err = w.next(ctx); err != nil {
			return err
		}
		if !yieldFrom(end, from, false, yield) {
			return nil
		}
	}
}

// replayEvents yields what there is of a history from an event on, and returns its last batch. goOn is false when the
// reader has had enough. No more of it than a few MiB is in memory at once.
func (c *Client) replayEvents(ctx context.Context, sandbox string, from uint64, yield func(protocol.Event, error) bool) (end *protocol.Batch, goOn bool, err error) {
	last, err := c.conn.LastBatch(ctx, c.tenant, sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil, false, protocol.Errorf(protocol.NotFound, "", "sandbox %s has no history: unknown id, or its history has expired", sandbox)
	}
	if err != nil {
		return nil, false, err
	}
	if from > last.Last()+1 {
		return nil, false, protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd, "there is no event %d of sandbox %s: the last one is %d", from, sandbox, last.Last())
	}
	goOn = true
	var refused error
	err = c.conn.ReadEvents(ctx, c.tenant, sandbox, from, func(b *protocol.Batch) bool {
		next := from
		if end != nil {
			next = end.Last() + 1
		}
		if b.First() > next {
			refused = protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceNotKept, "event %d of sandbox %s has expired: the oldest that is kept is %d", next, sandbox, b.First())
			return false
		}
		end = b
		goOn = yieldFrom(b, from, true, yield)
		return goOn
	})
	if refused != nil {
		err = refused
	}
	if err == nil && end == nil {
		err = protocol.Errorf(protocol.NotFound, "", "sandbox %s has no history: unknown id, or its history has expired", sandbox)
	}
	return end, goOn, err
}

// yieldFrom yields the events of a batch from a number on. It returns false when the reader has
// had enough.
func yieldFrom(b *protocol.Batch, from uint64, replay bool, yield func(protocol.Event, error) bool) bool {
	for _, e := range b.Events {
		if e.Sequence < from {
			continue
		}
		e.Replay = replay
		if !yield(e, nil) {
			return false
		}
	}
	return true
}
