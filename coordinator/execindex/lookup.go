package execindex

import (
	"context"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Find returns the entry of an exec. A recent exec is in memory. Any other exec is in the head or on the only page that
// can have its id. The result drops tells for how long the answer "not found" is valid, see [Lookups].
func (x *Index) Find(
	ctx context.Context, k key, id string,
) (entry jetstream.ExecEntry, found bool, drops uint64, err error) {
	hash := jetstream.HashExec(id)
	for {
		x.mu.Lock()
		e := x.sandboxes[k]
		if e == nil {
			x.mu.Unlock()
			return entry, false, 0, nil
		}
		r, recent := e.recent[hash]
		mayBe, before := e.maybeStored, e.drops
		_, old := e.old[hash.Prefix()]
		x.mu.Unlock()
		if recent && r.Accepted != 0 || !mayBe {
			return r.ExecEntry, recent || old, before, nil
		}
		h, head, err := x.head(ctx, k)
		if err == errChanged {
			continue
		}
		if err != nil {
			return entry, false, 0, err
		}
		entry, found = head.Find(hash)
		if h.Depth > 0 {
			page, err := x.page(ctx, k, h, h.Page(hash))
			if err == errChanged {
				continue
			}
			if err != nil {
				return entry, false, 0, err
			}
			if stored, there := page.Find(hash); there {
				entry, found = stored.With(entry), true
			}
		}
		x.mu.Lock()
		same := x.sandboxes[k] == e && e.drops == before
		if r, recent := e.recent[hash]; recent {
			entry, found = entry.With(r.ExecEntry), true
		}
		x.mu.Unlock()
		if same || found && entry.Accepted != 0 {
			entry.Hash = hash
			return entry, found, before, nil
		}
	}
}

// errChanged says that the stored index has changed since it was read. The caller starts over.
var errChanged = protocol.Errorf(protocol.Unavailable, "",
	"the index of execs changed while it was read; start again with the first page")

// head returns the head of a sandbox's index and its entries. If the stored index does not cover everything before the
// entries in memory, head rebuilds the index from the history. If it returns errChanged, the caller starts over.
func (x *Index) head(ctx context.Context, k key) (*indexHead, jetstream.ExecPage, error) {
	x.mu.Lock()
	if h, there := x.heads.get(k); there {
		if p, there := x.pages.get(pageKey{k, h.line, h.Stored(), entriesOfHead}); there {
			x.mu.Unlock()
			return h, p.page, nil
		}
	}
	x.mu.Unlock()
	stored, err := x.conn.ExecHead(ctx, k.Tenant, k.ID)
	if err != nil && err != jetstream.ErrNoIndex {
		return nil, nil, err
	}
	var there *jetstream.ExecHead
	if err == nil {
		there = stored
	}
	covers, err := x.reaches(ctx, k, there)
	if err != nil {
		return nil, nil, err
	}
	if !covers {
		if err := x.rebuild(ctx, k); err != nil {
			return nil, nil, err
		}
	}
	if there == nil {
		if err := x.readOld(ctx, k); err != nil {
			return nil, nil, err
		}
		return nil, nil, errChanged
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cacheHead(k, there), there.Entries, nil
}

// reaches reports whether the stored index covers everything before the entries in memory. h is nil if there is no
// stored index.
func (x *Index) reaches(ctx context.Context, k key, h *jetstream.ExecHead) (bool, error) {
	x.mu.Lock()
	e := x.sandboxes[k]
	if e == nil || e.base.Record == 0 {
		x.mu.Unlock()
		return true, nil
	}
	base := e.base
	x.mu.Unlock()
	switch {
	case h == nil || h.Last.Record < base.Record:
		return false, nil
	case h.Last == base:
		return true, nil
	}
	return x.conn.HasBatch(ctx, k.Tenant, k.ID, h.Last) // the head may belong to a lost history
}

// page returns a page of an index. If it returns errChanged, the caller starts over.
func (x *Index) page(ctx context.Context, k key, h *indexHead, n int) (jetstream.ExecPage, error) {
	at := pageKey{k, h.line, h.Spills, n}
	x.mu.Lock()
	p, there := x.pages.get(at)
	x.mu.Unlock()
	if !there {
		page, err := x.conn.ExecPage(ctx, k.Tenant, k.ID, h.ExecHead, n)
		if err == jetstream.ErrNoIndex {
			return nil, x.lostPage(ctx, k, h.Stored())
		}
		if err != nil {
			return nil, err
		}
		p.page = page
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !there {
		x.pages.put(at, p, len(p.page)+200)
	}
	if now, kept := x.heads.get(k); kept && now.line == h.line && now.Depth == h.Depth && now.Spills == h.Spills &&
		now.pageFilters[n] == nil {
		now.pageFilters[n] = filterOf(p.page)
		x.heads.put(k, now, now.size())
	}
	return p.page, nil
}

// lostPage is called when a page is missing. If no newer head is stored, it rebuilds the index from the history. It
// then returns errChanged in either case, so that the caller starts over.
func (x *Index) lostPage(ctx context.Context, k key, revision uint64) error {
	h, err := x.conn.ExecHead(ctx, k.Tenant, k.ID)
	if err != nil && err != jetstream.ErrNoIndex {
		return err
	}
	x.mu.Lock()
	x.heads.remove(k)
	x.mu.Unlock()
	if err == nil && h.Stored() != revision {
		return errChanged
	}
	if err := x.rebuild(ctx, k); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.sandboxes[k]; e != nil {
		e.maybeStored = false // memory has the whole history
	}
	return errChanged
}

// rebuild reads the execs of a sandbox's whole history into memory. Concurrent callers share one read.
func (x *Index) rebuild(ctx context.Context, k key) error {
	return share(ctx, &x.shared, "history "+k.Tenant+"."+k.ID, func(ctx context.Context) error {
		began := time.Now()
		read := &sandboxExecs{}
		err := x.conn.EachExecEvent(ctx, k.Tenant, k.ID, func(b *protocol.Batch) {
			said, accepted := entriesOf(nil, b)
			for _, entry := range said {
				read.add(entry, b.Record)
			}
			if read.total += accepted; len(said) > 0 {
				read.marks = append(read.marks, jetstream.Position{Record: b.Record, Batch: b.ID})
			}
		})
		if err != nil {
			return err
		}
		x.log.Warn("a sandbox's index of execs was incomplete and has been rebuilt from the history",
			"sandbox", k.ID, "execs", read.total, "took", time.Since(began).Round(time.Millisecond))
		x.mu.Lock()
		defer x.mu.Unlock()
		e := x.sandboxes[k]
		if e == nil {
			return nil // Forget dropped the sandbox from memory during the read
		}
		for _, r := range e.recent {
			read.add(r.ExecEntry, r.last)
		}
		end := uint64(0)
		if n := len(read.marks); n > 0 {
			end = read.marks[n-1].Record
		}
		for _, m := range e.marks {
			if m.Record > end {
				read.marks = append(read.marks, m)
			}
		}
		e.recent, e.marks, e.base = read.recent, read.marks, jetstream.Position{}
		x.heads.remove(k)
		return nil
	})
}

// readOld reads the ids that an older version stored for a sandbox without an index. The caller has read the execs of
// the whole history into memory.
func (x *Index) readOld(ctx context.Context, k key) error {
	prefixes, err := x.conn.OldExecIDs(ctx, k.Tenant, k.ID)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.sandboxes[k]
	if e == nil || e.base.Record != 0 {
		return nil
	}
	e.maybeStored, e.old = false, map[uint64]struct{}{}
	for _, p := range prefixes {
		e.old[p] = struct{}{}
	}
	for hash := range e.recent {
		delete(e.old, hash.Prefix())
	}
	return nil
}

// share runs f once for all concurrent callers with the same group and the same value of the parameter what. Each
// caller waits until its own ctx ends.
func share(ctx context.Context, group *singleflight.Group, what string, f func(ctx context.Context) error) error {
	done := group.DoChan(what, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shareWithin)
		defer cancel()
		return nil, f(ctx)
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shareWithin is the time limit of a shared read.
const shareWithin = 5 * time.Minute

// Store stores the execs of a sandbox as far as its history is folded.
func (x *Index) Store(ctx context.Context, k key) error {
	for rebuilt := false; ; {
		x.mu.Lock()
		e := x.sandboxes[k]
		pending := e != nil && len(e.marks) > 0
		x.mu.Unlock()
		if !pending {
			return nil
		}
		known, err := x.storedHead(ctx, k)
		if err != nil {
			return err
		}
		x.mu.Lock()
		if x.sandboxes[k] != e {
			x.mu.Unlock()
			continue
		}
		add, last := e.entries(), e.marks[len(e.marks)-1]
		x.mu.Unlock()
		h, err := x.conn.StoreExecs(ctx, k.Tenant, k.ID, known, add, last, rebuilt)
		switch {
		case err == nil:
			x.headStored(k, h)
			return nil
		case (err != jetstream.ErrNoIndex && err != jetstream.ErrIndexRemoved) || rebuilt:
			return err
		}
		if gone, err := purged(ctx, x.conn, k); gone || err != nil {
			return err
		}
		if err := x.rebuild(ctx, k); err != nil {
			return err
		}
		rebuilt = true
	}
}

// StoreThrough stores the execs of a sandbox up to a snapshot. Unlike Store, it first checks that the stored index has
// the execs that were accepted before this coordinator started. If some of them are missing, the index is rebuilt from
// the history.
func (x *Index) StoreThrough(ctx context.Context, k key, s *jetstream.Snapshot) error {
	x.EnsureCovers(k, s.State)
	if _, err := x.storedHead(ctx, k); err != nil {
		return err
	}
	return x.Store(ctx, k)
}

// entries returns the entries that came since the index was last stored, and the entries that an older version stored.
func (e *sandboxExecs) entries() []jetstream.ExecEntry {
	all := make([]jetstream.ExecEntry, 0, len(e.recent)+len(e.old))
	for _, r := range e.recent {
		all = append(all, r.ExecEntry)
	}
	for prefix := range e.old {
		all = append(all, jetstream.EntryOfLostHistory(prefix))
	}
	return all
}

// storedHead returns the stored head with its entries, or nil if no index is stored.
func (x *Index) storedHead(ctx context.Context, k key) (*jetstream.ExecHead, error) {
	for {
		x.mu.Lock()
		mayBe := x.sandboxes[k] != nil && x.sandboxes[k].maybeStored
		x.mu.Unlock()
		if !mayBe {
			return nil, nil
		}
		h, entries, err := x.head(ctx, k)
		if err == errChanged {
			continue
		}
		if err != nil {
			return nil, err
		}
		head := *h.ExecHead
		head.Entries = entries
		return &head, nil
	}
}

// purged reports whether only the tombstone of a sandbox's history is left.
func purged(ctx context.Context, conn *jetstream.Conn, k key) (bool, error) {
	b, err := conn.FirstBatch(ctx, k.Tenant, k.ID)
	if protocol.CodeOf(err) == protocol.NotFound { // segments may still have the history
		_, err = conn.LastBatch(ctx, k.Tenant, k.ID)
		if protocol.CodeOf(err) == protocol.NotFound {
			return true, nil
		}
		return false, err
	}
	return err == nil && b.First() > 1 && b.Events[len(b.Events)-1].Kind == protocol.SandboxDeleted, err
}
