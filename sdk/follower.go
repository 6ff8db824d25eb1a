package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// followerBuffer is how many live batches a follower holds for a slow reader. The follower drops further batches and
// reads them from the history later, so a slow reader uses a bounded amount of memory.
const followerBuffer = 256

// follower returns the batches of a sandbox's history after an event: in order, and each batch once. Only one goroutine
// may use a follower. Only the methods push and mayHaveMissed, which the feed calls, are safe for concurrent use.
type follower struct {
	feed    *feed
	live    chan *protocol.Batch
	missing wake.Signal // batches may be missing: read the history

	last, record uint64 // last event and record of the last batch returned; record 0: not known
	backlog      []*protocol.Batch
}

// follow makes a follower that starts after the event that has the number last. The parameter record is the record of
// that event, or 0 if unknown. The follower returns live batches only, until it learns that it may have missed batches.
// The caller must close it.
func (f *feed) follow(last, record uint64) *follower {
	w := &follower{feed: f, last: last, record: record,
		live: make(chan *protocol.Batch, followerBuffer), missing: wake.New()}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.followers[w] = struct{}{}
	return w
}

func (w *follower) close() {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	delete(w.feed.followers, w)
}

func (w *follower) push(b *protocol.Batch) {
	select {
	case w.live <- b:
	default:
		w.mayHaveMissed()
	}
}

func (w *follower) mayHaveMissed() { w.missing.Wake() }

// next waits for the next batch and returns it.
func (w *follower) next(ctx context.Context) (*protocol.Batch, error) {
	for {
		if len(w.backlog) > 0 {
			b := w.backlog[0]
			w.backlog = w.backlog[1:]
			w.record = max(w.record, b.Record)
			if b.Last() > w.last {
				w.last = b.Last()
				return b, nil
			}
			continue
		}
		select {
		case b := <-w.live:
			switch {
			case b.Last() <= w.last:
				w.record = max(w.record, b.Record)
			case b.First() > w.last+1:
				w.mayHaveMissed()
			default:
				w.last, w.record = b.Last(), b.Record
				return b, nil
			}
		case <-w.missing:
			if err := w.read(ctx); err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// read reads the history after the last batch. It repeats a read that failed for a transient reason, until ctx ends.
func (w *follower) read(ctx context.Context) error {
	for {
		batches, err := w.feed.client.history(ctx, w.feed.sandbox, w.record)
		if err == nil {
			w.backlog = batches
			return nil
		}
		if !isTransient(err) || !backoff.Sleep(ctx, retryPause) {
			return err
		}
	}
}
