package execindex

import (
	"context"
	"iter"

	"github.com/boxfleet/boxfleet/jetstream"
)

// All lists a sandbox's execs, the newest first.
func (x *Index) All(ctx context.Context, k key) (iter.Seq[jetstream.ExecEntry], error) {
	for {
		x.mu.Lock()
		e := x.sandboxes[k]
		if e == nil {
			x.mu.Unlock()
			return func(func(jetstream.ExecEntry) bool) {}, nil
		}
		before, mayBe := e.drops, e.maybeStored
		x.mu.Unlock()
		var stored []jetstream.ExecEntry
		if mayBe {
			h, _, err := x.head(ctx, k)
			if err == nil {
				stored, err = x.sorted(ctx, k, h)
			}
			if err == errChanged {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		x.mu.Lock()
		same := x.sandboxes[k] == e && e.drops == before
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

// merged lists the stored entries and the recent entries in one order. For an exec with a stored entry, a recent entry
// may add later events.
func merged(
	recent map[jetstream.ExecHash]jetstream.ExecEntry, stored []jetstream.ExecEntry,
) iter.Seq[jetstream.ExecEntry] {
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
				continue // the exec is listed among the recent entries
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

// sorted returns all stored entries, the newest first. Concurrent callers share one read. If it returns errChanged, the
// caller starts over.
func (x *Index) sorted(ctx context.Context, k key, h *indexHead) ([]jetstream.ExecEntry, error) {
	at := pageKey{k, h.line, h.Stored(), allEntries}
	for {
		x.mu.Lock()
		p, there := x.pages.get(at)
		x.mu.Unlock()
		if there {
			return p.All, nil
		}
		var all []jetstream.ExecEntry
		err := share(ctx, &x.shared, "pages "+k.Tenant+"."+k.ID, func(ctx context.Context) error {
			head, err := x.conn.ExecHead(ctx, k.Tenant, k.ID)
			if err == jetstream.ErrNoIndex || err == nil && head.Stored() != h.Stored() {
				x.mu.Lock()
				defer x.mu.Unlock()
				x.heads.remove(k) // a newer head is stored
				return errChanged
			}
			if err != nil {
				return err
			}
			pages, err := x.conn.ExecPages(ctx, k.Tenant, k.ID, head)
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
			x.pages.put(at, readPages{All: all}, len(all)*entrySize+200)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if all != nil {
			return all, nil // the cache may be too small for the list
		}
	}
}

const entrySize = 72 // bytes that an entry takes in memory
