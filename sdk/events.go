package sdk

import (
	"context"
	"iter"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// Events reads the sandbox's numbered history in order, without gap or repeat: first the existing events, with Replay
// set, and then, with [WithFollow], each new event. Without WithFollow the sequence ends after the last existing event;
// with WithFollow it ends after the event of the sandbox's deletion. It also ends when ctx ends or after the first
// error.
//
// While nothing happens in a followed sandbox, the client makes one small read of the log at growing intervals, up to a
// minute. A slow reader uses a bounded amount of memory.
//
// Options: [WithFrom], [WithFollow]. Errors: not_found if the sandbox never existed or its history has expired;
// out_of_range with reason sequence_beyond_end if WithFrom is greater than the number of the next event; out_of_range
// with reason sequence_not_kept if the event of WithFrom has expired (the message names the oldest event that is kept).
func (s *Sandbox) Events(ctx context.Context, opts ...EventsOption) iter.Seq2[Event, error] {
	o := settingsOf(opts, EventsOption.forEvents)
	return func(yield func(Event, error) bool) {
		id, err := s.historyID(ctx)
		if err != nil {
			yield(Event{}, failed(ctx, err, "read the events of "+s.ID()))
			return
		}
		eventsOf(ctx, s.client, id, o.from, o.follow)(yield)
	}
}

// Events reads the events of the exec from its sandbox's history; see [Sandbox.Events]. The sequence ends after the
// event that ended the exec. [WithFrom] takes an event number of the sandbox's history; by default the whole history is
// read. If the exec ended before the event of WithFrom, the sequence is empty.
//
// Options: [WithFrom], [WithFollow]. Errors are those of [Sandbox.Events]; not_found also for an unknown exec.
func (x *Exec) Events(ctx context.Context, opts ...EventsOption) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		// Ask whether the exec exists. The history alone cannot show that the exec does not exist, and a follower would
		// wait for it for ever. On any other error, read the history all the same.
		if !x.Info().State.Terminal() {
			switch err := x.Refresh(ctx); protocol.CodeOf(err) {
			case protocol.NotFound, protocol.InvalidArgument:
				yield(Event{}, err)
				return
			}
		}
		if x.Info().State.Terminal() {
			opts = append(slices.Clip(opts), WithFollow(false)) // the exec has ended: all its events exist
		}
		for e, err := range x.sandbox.Events(ctx, opts...) {
			switch {
			case err != nil:
				yield(e, err)
				return
			case e.Exec == nil || e.Exec.ID != x.id:
			case !yield(e, nil) || e.Exec.State.Terminal():
				return
			}
		}
	}
}

// EventsPage asks a coordinator, once, for events of the sandbox's history, beginning with the event that has the
// number from; 0 means the oldest event that is kept. limit is the number of events, 1 to 1000; 0 means 100. A page
// ends early once its events take more than half a MiB. last is the number of the last existing event: a page from
// last+1 is empty. [Sandbox.Events] reads the whole history and can follow it.
//
// Errors: not_found; out_of_range with reason sequence_beyond_end if from is greater than last+1, and with reason
// sequence_not_kept if that event has expired; resource_exhausted with reason too_many_reads.
func (s *Sandbox) EventsPage(ctx context.Context, from uint64, limit int) (page *EventPage, last uint64, err error) {
	reply, err := s.client.query(ctx, protocol.EndpointEvents, protocol.Query{Sandbox: s.ID(), From: from, Limit: limit})
	if err != nil {
		return nil, 0, err
	}
	return reply.History, reply.Sequence, nil
}

// eventsOf reads the events of the sandbox with this id, starting with the event that has the number from.
func eventsOf(ctx context.Context, c *Client, sandbox string, from uint64, follow bool) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		r := &eventReader{client: c, sandbox: sandbox, from: max(from, 1), yield: yield}
		if err := r.run(ctx, follow); err != nil {
			yield(Event{}, failed(ctx, err, "read the events of "+sandbox))
		}
	}
}

// eventReader yields a sandbox's events, starting with the event that has the number from.
type eventReader struct {
	client  *Client
	sandbox string
	from    uint64
	yield   func(Event, error) bool

	end     *protocol.Batch // last batch read
	stopped bool            // the caller has left its loop
}

func (r *eventReader) run(ctx context.Context, follow bool) error {
	if !follow {
		return r.replay(ctx)
	}
	f, err := r.client.feed(r.sandbox)
	if err != nil {
		return err
	}
	defer f.release()
	w := f.follow(0, 0)
	defer w.close()
	if err := r.replay(ctx); err != nil || r.stopped {
		return err
	}
	w.last, w.record = r.end.Last(), r.end.Record
	w.feed.coverFrom(w.last, w.record)
	for r.end.Events[len(r.end.Events)-1].State != protocol.StateDeleted {
		if r.end, err = w.next(ctx); err != nil {
			return err
		}
		if r.pass(r.end, false); r.stopped {
			return nil
		}
	}
	return nil
}

// replay yields the existing events. It holds no more than a few MiB of the history in memory.
func (r *eventReader) replay(ctx context.Context) error {
	unknown := protocol.Errorf(protocol.NotFound, "",
		"sandbox %s has no history: the id is unknown, or the history has expired", r.sandbox)
	last, err := r.client.reads.Newest(ctx, r.sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return unknown
	}
	if err != nil {
		return err
	}
	if r.from > last.Last()+1 {
		return protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd,
			"there is no event %d of sandbox %s: the last one is %d", r.from, r.sandbox, last.Last())
	}
	var expired error
	err = r.client.reads.FromEvent(ctx, r.sandbox, r.from, func(b *protocol.Batch) bool {
		next := r.from
		if r.end != nil {
			next = r.end.Last() + 1
		}
		if b.First() > next {
			expired = protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceNotKept,
				"event %d of sandbox %s has expired: the oldest event that is kept is %d", next, r.sandbox, b.First())
			return false
		}
		r.end = b
		r.pass(b, true)
		return !r.stopped
	})
	switch {
	case expired != nil:
		return expired
	case err == nil && r.end == nil:
		return unknown
	}
	return err
}

// pass yields those events of a batch that have at least the number from.
func (r *eventReader) pass(b *protocol.Batch, replay bool) {
	for _, e := range b.Events {
		if e.Sequence < r.from {
			continue
		}
		if e.Replay = replay; !r.yield(e.WithoutValues(), nil) {
			r.stopped = true
			return
		}
	}
}
