package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// find returns what is known of an exec: in memory where it came since the index was stored last, else from the one
// page that it belongs on. drops says how long it holds that it was not found: see [seen].
func (x *execIndex) find(ctx context.Context, k key, id string) (entry jetstream.ExecEntry, found bool, drops uint64, err error) {
	hash := jetstream.HashExec(id)
	for {
		x.mu.Lock()
		e := x.of[k]
		if e == nil {
			x.mu.Unlock()
			return entry, false, 0, nil
		}
		r, recent := e.recent[hash]
		mayBe, before := e.mayBe, e.drops
		_, old := e.old[hash.Prefix()]
		x.mu.Unlock()
		if recent && r.Accepted != 0 || !mayBe {
			return r.ExecEntry, recent || old, before, nil
		}
		h, head, err := x.head(ctx, k)
		if err == errNoHead {
			continue
		}
		if err != nil {
			return entry, false, 0, err
		}
		entry, found = head.Find(hash)
		if h.Depth > 0 {
			page, err := x.page(ctx, k, h, h.Page(hash))
			if err == errNoHead {
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
		same := x.of[k] == e && e.drops == before
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

// errNoHead says that what is known of an index has changed: there is none, or another one.
var errNoHead = protocol.Errorf(protocol.Unavailable, "", "the index of execs has changed; begin with its first page")

// head returns the head of a sandbox's index, and its entries. Where it does not go as far as what is in memory
// begins, the history is read. Error: errNoHead, where the caller looks again.
func (x *execIndex) head(ctx context.Context, k key) (*execHead, jetstream.ExecPage, error) {
	x.mu.Lock()
	if h, there := x.heads.get(k); there {
		if p, there := x.pages.get(pageKey{k, h.line, h.Stored(), entriesOfHead}); there {
			x.mu.Unlock()
			return h, p.page, nil
		}
	}
	x.mu.Unlock()
	stored, err := x.conn.ExecHead(ctx, k.tenant, k.id)
	if err != nil && err != jetstream.ErrNoIndex {
		return nil, nil, err
	}
	var there *jetstream.ExecHead
	if err == nil {
		there = stored
	}
	covers, err := x.covers(ctx, k, there)
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
		return nil, nil, errNoHead
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.keepHead(k, there), there.Entries, nil
}

// covers says whether an index, nil where there is none, has everything up to where what is in memory begins.
func (x *execIndex) covers(ctx context.Context, k key, h *jetstream.ExecHead) (bool, error) {
	x.mu.Lock()
	e := x.of[k]
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
	return x.conn.HasBatch(ctx, k.tenant, k.id, h.Last) // it may be of a history that was lost
}

// page returns a page of an index. Error: errNoHead, where the caller looks again.
func (x *execIndex) page(ctx context.Context, k key, h *execHead, n int) (jetstream.ExecPage, error) {
	at := pageKey{k, h.line, h.Spills, n}
	x.mu.Lock()
	p, there := x.pages.get(at)
	x.mu.Unlock()
	if !there {
		page, err := x.conn.ExecPage(ctx, k.tenant, k.id, h.ExecHead, n)
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
	if now, kept := x.heads.get(k); kept && now.line == h.line && now.Depth == h.Depth && now.Spills == h.Spills && now.onPages[n] == nil {
		now.onPages[n] = filterOf(p.page)
		x.heads.put(k, now, now.size())
	}
	return p.page, nil
}

// lostPage is called where a page is not there: there is another head meanwhile, or the history is read. It
// returns errNoHead, for the caller to look again.
func (x *execIndex) lostPage(ctx context.Context, k key, revision uint64) error {
	h, err := x.conn.ExecHead(ctx, k.tenant, k.id)
	if err != nil && err != jetstream.ErrNoIndex {
		return err
	}
	x.mu.Lock()
	x.heads.remove(k)
	x.mu.Unlock()
	if err == nil && h.Stored() != revision {
		return errNoHead
	}
	if err := x.rebuild(ctx, k); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.of[k]; e != nil {
		e.mayBe = false // the history is in memory
	}
	return errNoHead
}

// rebuild reads a sandbox's whole history, once for all who want it, so that everything is in memory.
func (x *execIndex) rebuild(ctx context.Context, k key) error {
	return x.share(ctx, "history "+k.tenant+"."+k.id, func(ctx context.Context) error {
		began := time.Now()
		read := &execsOf{}
		err := x.conn.EachExecEvent(ctx, k.tenant, k.id, func(b *protocol.Batch) {
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
		x.log.Warn("the index of a sandbox's execs does not have all of them, and was made again from its history",
			"sandbox", k.id, "execs", read.total, "took", time.Since(began).Round(time.Millisecond))
		x.mu.Lock()
		defer x.mu.Unlock()
		e := x.of[k]
		if e == nil {
			return nil // forgotten meanwhile
		}
		for hash, r := range e.recent {
			read.add(r.ExecEntry, r.last)
			_ = hash
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

// readOld reads what an older version stored, where there is no index yet. The history is in memory.
func (x *execIndex) readOld(ctx context.Context, k key) error {
	prefixes, err := x.conn.OldExecIDs(ctx, k.tenant, k.id)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.of[k]
	if e == nil || e.base.Record != 0 {
		return nil
	}
	e.mayBe, e.old = false, map[uint64]struct{}{}
	for _, p := range prefixes {
		e.old[p] = struct{}{}
	}
	for hash := range e.recent {
		delete(e.old, hash.Prefix())
	}
	return nil
}

// share runs something once for all who ask for it meanwhile. Each waits as long as it likes.
func (x *execIndex) share(ctx context.Context, what string, f func(ctx context.Context) error) error {
	done := x.shared.DoChan(what, func() (any, error) {
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

// shareWithin bounds what is read for all who ask for it.
const shareWithin = 5 * time.Minute

// store stores what the history says of a sandbox's execs, as far as it is folded.
func (x *execIndex) store(ctx context.Context, k key) error {
	for whole := false; ; {
		x.mu.Lock()
		e := x.of[k]
		pending := e != nil && len(e.marks) > 0
		x.mu.Unlock()
		if !pending {
			return nil
		}
		known, err := x.stands(ctx, k)
		if err != nil {
			return err
		}
		x.mu.Lock()
		if x.of[k] != e {
			x.mu.Unlock()
			continue
		}
		add, last := e.entries(), e.marks[len(e.marks)-1]
		x.mu.Unlock()
		h, err := x.conn.StoreExecs(ctx, k.tenant, k.id, known, add, last, whole)
		switch {
		case err == nil:
			x.headStored(k, h)
			return nil
		case (err != jetstream.ErrNoIndex && err != jetstream.ErrIndexRemoved) || whole:
			return err
		}
		if gone, err := x.purged(ctx, k); gone || err != nil {
			return err
		}
		if err := x.rebuild(ctx, k); err != nil {
			return err
		}
		whole = true
	}
}

// storeAll is store that looks first whether what came before this coordinator started is stored, and makes that
// good from the history. Then everything up to the snapshot's place is stored.
func (x *execIndex) storeAll(ctx context.Context, k key, s *jetstream.Snapshot) error {
	x.expect(k, s.State)
	if _, err := x.stands(ctx, k); err != nil {
		return err
	}
	return x.store(ctx, k)
}

// entries are all that came since the index was stored last, and what an older version stored.
func (e *execsOf) entries() []jetstream.ExecEntry {
	all := make([]jetstream.ExecEntry, 0, len(e.recent)+len(e.old))
	for _, r := range e.recent {
		all = append(all, r.ExecEntry)
	}
	for prefix := range e.old {
		all = append(all, jetstream.OfLostHistory(prefix))
	}
	return all
}

// stands returns the head that is stored, with its entries, nil where there is none.
func (x *execIndex) stands(ctx context.Context, k key) (*jetstream.ExecHead, error) {
	for {
		x.mu.Lock()
		mayBe := x.of[k] != nil && x.of[k].mayBe
		x.mu.Unlock()
		if !mayBe {
			return nil, nil
		}
		h, entries, err := x.head(ctx, k)
		if err == errNoHead {
			continue
		}
		if err != nil {
			return nil, err
		}
		whole := *h.ExecHead
		whole.Entries = entries
		return &whole, nil
	}
}

// purged says whether of a sandbox's history only the tombstone is kept.
func (x *execIndex) purged(ctx context.Context, k key) (bool, error) {
	b, err := x.conn.FirstBatch(ctx, k.tenant, k.id)
	if protocol.CodeOf(err) == protocol.NotFound {
		return true, nil
	}
	return err == nil && b.First() > 1 && b.Events[len(b.Events)-1].Kind == protocol.SandboxDeleted, err
}

// execIDsStoredThrough is the record up to which everything that the history of a living sandbox says of execs is
// stored in the index: what is before need not be read to know their ids. It stores what is not.
func (c *coordinator) execIDsStoredThrough(ctx context.Context, k key) (record uint64, err error) {
	s := c.projection.journal(k).Snapshot()
	if err := c.projection.execs.storeAll(ctx, k, s); err != nil {
		return 0, err
	}
	return s.Record, nil
}
