package coordinator

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// over is what is kept in memory of a sandbox that is over: it was deleted. Everything else is read from its
// record, or from the log, when somebody asks. With its key, its place in the map and the id's own bytes it is
// at most 300 bytes.
type over struct {
	created, ended int64  // ns since 1970
	record         uint64 // of its last batch
	labels         uint64 // a set of its labels and its name, see [labelSet]
	saved          bool   // its record is stored
	named          bool   // it has a name
}

func overOf(b *protocol.Sandbox, record uint64) over {
	return over{created: b.CreatedAt.UnixNano(), ended: b.StateChangedAt.UnixNano(), record: record, labels: labelSet(b.Spec.Labels, b.Name), named: b.Name != ""}
}

var labelSeed = maphash.MakeSeed()

// labelSet is a set of labels and a name as 64 bits, two for each: a selector whose bits are not all in it does not
// match. One whose bits are may match, and is compared with the labels and the name themselves.
func labelSet(labels map[string]string, name string) (set uint64) {
	add := func(k, v string) {
		h := maphash.Comparable(labelSeed, [2]string{k, v})
		set |= 1<<(h&63) | 1<<(h>>6&63)
	}
	for k, v := range labels {
		add(k, v)
	}
	if name != "" {
		add("", name) // no label has an empty key
	}
	return set
}

// retireLocked keeps of a sandbox no more than that it is over. p.mu is held for writing.
func (p *projection) retireLocked(k key, o over) {
	if known, again := p.over[k]; again {
		if known.record > o.record {
			return
		}
		o.saved = o.saved || known.saved && known.record == o.record
	}
	p.index.move(k, p.sandboxes[k], nil)
	p.renameLocked(k, p.sandboxes[k], nil)
	p.index.wakes.drop(k)
	delete(p.sandboxes, k)
	if !p.saving { // else when it is stored
		p.execs.Forget(k)
	}
	if o.saved || !p.saving || len(p.ending) >= maxEnding {
		delete(p.journals, k)
		delete(p.ending, k)
	} else {
		p.ending[k] = struct{}{}
	}
	k = p.compactLocked(k)
	p.over[k] = o
	p.livingIDs.remove(k)
	p.overIDs.add(k)
	if p.firstOver == 0 || o.ended < p.firstOver {
		p.firstOver = o.ended
	}
}

// maxEnding is of how many sandboxes that are over the leader keeps the state until their records are stored.
// Those of more it folds again.
const maxEnding = 1000

// compactLocked is a key with strings of its own: those of a message would keep all of it in memory, and
// every sandbox would have its tenant's name once more.
func (p *projection) compactLocked(k key) key {
	tenant, known := p.tenants[k.Tenant]
	if !known {
		tenant = strings.Clone(k.Tenant)
		p.tenants[tenant] = tenant
	}
	return key{Tenant: tenant, ID: strings.Clone(k.ID)}
}

// knows says whether a sandbox is known, living or over.
func (p *projection) knows(k key) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, over := p.over[k]
	return over || p.sandboxes[k] != nil
}

func (p *projection) isOver(k key) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, over := p.over[k]
	return over
}

// openOver folds a sandbox that is not in memory from its record and from what the log has after that, or,
// without a record, from the log. Nothing of it is kept.
func (p *projection) openOver(ctx context.Context, k key) (*jetstream.Journal, error) {
	p.mu.RLock()
	j := p.journals[k]
	p.mu.RUnlock()
	if j == nil {
		j = p.conn.Journal(jetstream.JournalConfig{Tenant: k.Tenant, Sandbox: k.ID, Writer: p.writer, KeepEnded: keptExecs})
		s, err := p.conn.Snapshot(ctx, k.Tenant, k.ID)
		switch {
		case err == nil && s.Usable():
			j.Restore(s)
		case err != nil && protocol.CodeOf(err) != protocol.NotFound:
			return nil, err
		}
	}
	return j, j.Refresh(ctx)
}

// readOver reads what is stored of the sandboxes that are over, beside everything else.
func (p *projection) readOver(ctx context.Context) error {
	var behind []key
	err := p.conn.ReadOver(ctx, func(r *jetstream.OverRecord) {
		k := key{Tenant: r.Tenant, ID: r.Sandbox}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.sandboxes[k] != nil { // its end was not heard, or its history began again
			behind = append(behind, key{Tenant: strings.Clone(k.Tenant), ID: strings.Clone(k.ID)})
			return
		}
		p.retireLocked(k, over{created: r.CreatedAt.UnixNano(), ended: r.EndedAt.UnixNano(), record: r.Record, labels: labelSet(r.Labels, r.Name), named: r.Name != "", saved: true})
	})
	if err == nil {
		err = p.readHistories(ctx, behind)
	}
	if err == nil {
		p.overRead.give()
	}
	return err
}

// forgetOver forgets a sandbox that was purged.
func (p *projection) forgetOver(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.over, k)
	p.overIDs.remove(k)
	delete(p.ending, k)
	delete(p.unsaved, k)
	delete(p.journals, k)
	p.execs.Forget(k)
}

// endedBefore lists sandboxes that are over since before a time, at most so many.
func (p *projection) endedBefore(t time.Time, most int) (list []key) {
	limit := t.UnixNano()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.firstOver == 0 || p.firstOver >= limit {
		return nil
	}
	first := int64(0)
	for k, o := range p.over {
		if o.ended < limit && len(list) < most {
			list = append(list, k)
		}
		if first == 0 || o.ended < first {
			first = o.ended
		}
	}
	p.firstOver = first
	return list
}

// overPage lists sandboxes of a tenant that are over, the newest first, that come after a place in that order and may
// match a selector: at most so many, with what is known of them.
func (p *projection) overPage(tenant, after string, labels uint64, most int) (list []overRow) {
	p.mu.RLock()
	for k, o := range p.over {
		if k.Tenant != tenant || o.labels&labels != labels {
			continue
		}
		if row := (overRow{k, pageToken(time.Unix(0, o.created), k.ID)}); row.token > after {
			list = append(list, row)
		}
	}
	p.mu.RUnlock()
	slices.SortFunc(list, func(a, b overRow) int { return cmp.Compare(a.token, b.token) })
	return list[:min(len(list), most)]
}

type overRow struct {
	key   key
	token string // see [pageToken]
}

// listOver reads the handles of sandboxes that are over: so many of those that match a query, the newest first, as a
// page may have.
func (c *coordinator) listOver(ctx context.Context, tenant string, q *protocol.Query) (found []*protocol.Sandbox, err error) {
	if !await(ctx, c.projection.overRead) {
		return nil, protocol.Errorf(protocol.Unavailable, "", "the coordinator is still reading what is stored of deleted sandboxes; try again")
	}
	size := 0
	for after := q.Page; ; {
		rows := c.projection.overPage(tenant, after, labelSet(q.Labels, q.Name), readsAtOnce)
		handles, err := c.readHandles(ctx, rows)
		if err != nil {
			return nil, err
		}
		for _, b := range handles {
			if b != nil && selects(q, b) {
				found = append(found, b)
				size += encoded(b)
			}
			if len(found) > q.Limit || size > maxPage { // one more than a page, so that it is known that there are more
				return found, nil
			}
		}
		if len(rows) < readsAtOnce {
			return found, nil
		}
		after = rows[len(rows)-1].token
	}
}

// readsAtOnce is how many sandboxes that are over are read at a time.
const readsAtOnce = 32

// readHandles reads sandboxes that are over, nil for one that is not there any more.
func (c *coordinator) readHandles(ctx context.Context, rows []overRow) ([]*protocol.Sandbox, error) {
	handles := make([]*protocol.Sandbox, len(rows))
	group, ctx := errgroup.WithContext(ctx)
	for i, row := range rows {
		group.Go(func() error {
			s, err := c.conn.Snapshot(ctx, row.key.Tenant, row.key.ID)
			if err == nil && s.Usable() && s.State.Sandbox.State == protocol.StateDeleted {
				handles[i] = &s.State.Sandbox
				return nil
			}
			if err != nil && protocol.CodeOf(err) != protocol.NotFound {
				return err
			}
			j, err := c.projection.openOver(ctx, row.key)
			if err != nil {
				return err
			}
			j.View(func(s *protocol.State, _ uint64) {
				if s.Exists() && !s.Sandbox.HistoryPurged {
					b := s.Sandbox
					handles[i] = &b
				}
			})
			return nil
		})
	}
	return handles, group.Wait()
}
