package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// followerRoom is how many batches wait for a follower that is slow. What finds no room is dropped
// and read from the history later, so that a slow reader costs bounded memory.
const followerRoom = 256

// follower reads a sandbox's history in order, each batch once, from a position on and for ever.
// It belongs to one goroutine; push and mayHaveMissed are called by the feed.
type follower struct {
	feed    *feed
	live    chan *protocol.Batch
	missing chan struct{} // has room for one: read the history

	last, record uint64 // the batch before the next one; record may be 0 where it is not known
	backlog      []*protocol.Batch
}

// follow makes a follower, which starts behind an event. record is the one of that event, 0 where
// it is not known. Nothing is replayed unless the follower is told that it may have missed something.
// The caller must close it.
func (f *feed) follow(last, record uint64) *follower {
	w := &follower{feed: f, live: make(chan *protocol.Batch, followerRoom), missing: make(chan struct{}, 1), last: last, record: record}
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

func (w *follower) mayHaveMissed() {
	select {
	case w.missing <- struct{}{}:
	default:
	}
}

// next waits for the next batch.
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

// read reads the history after the last batch, trying until it can be read or ctx ends.
func (w *follower) read(ctx context.Context) error {
	for {
		batches, err := w.feed.client.history(ctx, w.feed.sandbox, w.record)
		if err == nil {
			w.backlog = batches
			return nil
		}
		if !isTransient(err) || !pause(ctx, retryPause) {
			return err
		}
	}
}
