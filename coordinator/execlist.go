package coordinator

import (
	"context"
	"iter"
	"sync"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// all lists what is known of a sandbox's execs, the newest first.
func (x *execIndex) all(ctx context.Context, k key) (iter.Seq[jetstream.ExecEntry], error) {
	for {
		x.mu.Lock()
		e := x.of[k]
		if e == nil {
			x.mu.Unlock()
			return func(func(jetstream.ExecEntry) bool) {}, nil
		}
		before, mayBe := e.drops, e.mayBe
		x.mu.Unlock()
		var stored []jetstream.ExecEntry
		if mayBe {
			h, _, err := x.head(ctx, k)
			if err == nil {
				stored, err = x.sorted(ctx, k, h)
			}
			if err == errNoHead {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		x.mu.Lock()
		same := x.of[k] == e && e.drops == before
		recent := make(map[jetstream.ExecHash]jetstream.ExecEntry, len(e.recent))
		for hash, r := range e.recent {
			recent[hash] = r.ExecEntry
		}
		x.mu.Unlock()
		if same {
			return merged(recent, stored), nil
		}
	}
}

// merged is what is stored with what came later.
func merged(recent map[jetstream.ExecHash]jetstream.ExecEntry, stored []jetstream.ExecEntry) iter.Seq[jetstream.ExecEntry] {
	var accepted []jetstream.ExecEntry
	for _, r := range recent {
		accepted = append(accepted, r)
	}
	accepted = jetstream.NewestFirst(accepted)
	return func(yield func(jetstream.ExecEntry) bool) {
		left := accepted
		for _, s := range stored {
			for len(left) > 0 && left[0].Sequence > s.Sequence {
				if !yield(left[0]) {
					return
				}
				left = left[1:]
			}
			r, later := recent[s.Hash]
			if later && r.Accepted != 0 {
				continue // it comes by itself
			}
			if !yield(s.With(r)) {
				return
			}
		}
		for _, r := range left {
			if !yield(r) {
				return
			}
		}
	}
}

// sorted returns everything that is stored, the newest first. It is read once for all who ask for it meanwhile.
// Error: errNoHead, where the caller looks again.
func (x *execIndex) sorted(ctx context.Context, k key, h *execHead) ([]jetstream.ExecEntry, error) {
	at := pageKey{k, h.line, h.Stored(), allEntries}
	for {
		x.mu.Lock()
		p, there := x.pages.get(at)
		x.mu.Unlock()
		if there {
			return p.all, nil
		}
		var all []jetstream.ExecEntry
		err := x.share(ctx, "pages "+k.tenant+"."+k.id, func(ctx context.Context) error {
			head, err := x.conn.ExecHead(ctx, k.tenant, k.id)
			if err == jetstream.ErrNoIndex || err == nil && head.Stored() != h.Stored() {
				return x.outdated(k)
			}
			if err != nil {
				return err
			}
			pages, err := x.conn.ExecPages(ctx, k.tenant, k.id, head)
			if err == jetstream.ErrNoIndex {
				return x.lostPage(ctx, k, head.Stored())
			}
			if err != nil {
				return err
			}
			entries := head.Entries
			for _, p := range pages {
				all = append(all, p.Entries()...)
			}
			all = jetstream.NewestFirst(jetstream.Merge(all, entries))
			x.mu.Lock()
			defer x.mu.Unlock()
			x.pages.put(at, execPages{all: all}, len(all)*entrySize+200)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if all != nil {
			return all, nil // it may be too large to be kept
		}
	}
}

const entrySize = 72 // of an entry in memory

// outdated forgets a head that is not the stored one.
func (x *execIndex) outdated(k key) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.heads.remove(k)
	return errNoHead
}

type readBatch = func(ctx context.Context, tenant, sandbox string, record uint64) (*protocol.Batch, error)

// onceEach reads each record once: a message has the events of many execs.
func onceEach(read readBatch) readBatch {
	type result struct {
		once  sync.Once
		batch *protocol.Batch
		err   error
	}
	var mu sync.Mutex
	results := map[uint64]*result{}
	return func(ctx context.Context, tenant, sandbox string, record uint64) (*protocol.Batch, error) {
		mu.Lock()
		r := results[record]
		if r == nil {
			r = &result{}
			results[record] = r
		}
		mu.Unlock()
		r.once.Do(func() { r.batch, r.err = read(ctx, tenant, sandbox, record) })
		return r.batch, r.err
	}
}
