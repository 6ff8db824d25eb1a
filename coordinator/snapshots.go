package coordinator

import (
	"context"
	"maps"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// snapshots writes what changed since the last round, and then how far the log is covered. A new leader begins
// with what changed since the last round of the one before.
func (c *coordinator) snapshots(ctx context.Context, lease *jetstream.Lease) error {
	ticker := time.NewTicker(c.cfg.Timing.Snapshot)
	defer ticker.Stop()
	defer c.projection.stopSaving()
	stored, restored := map[key]*kept{}, -1
	c.projection.startSaving()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		now := c.projection.timesRestored()
		if restored != now { // what was stored may have been lost with the log
			clear(stored)
			checkpoint, _, err := c.conn.Checkpoint(ctx)
			if err != nil {
				c.log.Warn("snapshots are written later", "error", err)
				continue
			}
			c.projection.saveSince(checkpoint.Record)
			restored = now
		}
		if err := c.snapshot(ctx, lease, stored); err != nil {
			c.log.Warn("snapshots are written later", "error", err)
		}
	}
}

// startSaving has the projection note what changes from now on.
func (p *projection) startSaving() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saving = true
}

// saveSince notes everything that has changed after a record.
func (p *projection) saveSince(record uint64) {
	p.mu.Lock()
	journals := maps.Clone(p.journals)
	for k, o := range p.over {
		if o.record > record || !o.saved {
			p.unsaved[k] = struct{}{}
		}
	}
	p.mu.Unlock()
	for k, j := range journals { // a journal calls into the projection, so not with its lock
		if j.Position().Record > record {
			p.mu.Lock()
			p.unsaved[k] = struct{}{}
			p.mu.Unlock()
		}
	}
}

// stopSaving is for the end of leading.
func (p *projection) stopSaving() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saving = false
	for k := range p.unsaved {
		if _, over := p.over[k]; over {
			p.execs.Forget(k)
		}
	}
	clear(p.unsaved)
	for k := range p.ending {
		delete(p.journals, k)
	}
	clear(p.ending)
}

func (p *projection) timesRestored() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.restored
}

// isSettled says whether the projection is of the log as it was when it was restored last.
func (p *projection) isSettled() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.settled
}

// takeUnsaved takes what is to be stored, and says up to where the log was followed before.
func (p *projection) takeUnsaved() (unsaved map[key]struct{}, covered jetstream.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	unsaved, p.unsaved = p.unsaved, map[key]struct{}{}
	return unsaved, p.followed
}

// setUnsaved notes again what was not stored.
func (p *projection) setUnsaved(keys map[key]struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.Copy(p.unsaved, keys)
}

// kept is what this leader stored of a sandbox. Each write says which one it replaces: one of an earlier
// leader that comes late loses.
type kept struct {
	at       jetstream.Position // of the snapshot
	revision uint64             // of the snapshot; 0: not known
}

// snapshot writes the snapshots of one round. The checkpoint says that every event up to it is in some
// snapshot: where one could not be written, it goes as far as that sandbox's last one.
func (c *coordinator) snapshot(ctx context.Context, lease *jetstream.Lease, stored map[key]*kept) error {
	unsaved, covered := c.projection.takeUnsaved()
	defer func() { c.projection.setUnsaved(unsaved) }()
	for k := range unsaved {
		if err := lease.Check(); err != nil { // the next leader writes newer ones
			return err
		}
		if stored[k] == nil {
			stored[k] = &kept{}
		}
		err := c.keep(ctx, k, stored[k])
		if away(err) {
			return err
		}
		if err != nil {
			c.log.Warn("a snapshot is not written, and will be later", "sandbox", k.ID, "error", err)
			if at := stored[k].at; at.Record < covered.Record {
				covered = at
			}
			continue
		}
		delete(unsaved, k)
		if c.projection.get(k) == nil {
			delete(stored, k)
		}
	}
	if covered.Record == 0 {
		return nil
	}
	reserved := uint64(0)
	if r := c.reserved.Load(); r != nil && r.restored == c.projection.timesRestored() {
		reserved = r.revision
	}
	return c.conn.WriteCheckpoint(ctx, covered, reserved)
}

// away says whether an error is that NATS does not answer, so that there is no use in going on.
func away(err error) bool {
	switch protocol.CodeOf(err) {
	case protocol.Unavailable, protocol.DeadlineExceeded, protocol.Cancelled:
		return true
	}
	return false
}

// keep writes a sandbox's snapshot where it has changed, unless the sandbox was purged meanwhile: what is
// written after that stays for ever. The ids of its execs are written before: the snapshot may lack them.
func (c *coordinator) keep(ctx context.Context, k key, stored *kept) error {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if c.projection.isOver(k) {
		return c.keepOver(ctx, k, stored)
	}
	if c.projection.get(k) == nil {
		return nil
	}
	j := c.projection.journal(k)
	if j.Position() == stored.at {
		return nil
	}
	s := j.Snapshot()
	switch {
	case !s.State.Exists():
		return nil
	case s.State.Sandbox.State == protocol.StateDeleted: // just now
		return c.keepOver(ctx, k, stored)
	}
	c.cfg.Probe("snapshot-before-write")
	if err := c.projection.execs.Store(ctx, k); err != nil {
		return err
	}
	revision, err := c.conn.WriteSnapshot(ctx, k.Tenant, k.ID, s, stored.revision)
	if err != nil {
		stored.revision = 0
		return err
	}
	stored.at, stored.revision = jetstream.Position{Record: s.Record, Batch: s.Batch}, revision
	return nil
}

// keepOver writes the last snapshot of a sandbox that is over, after which no more than that is kept in memory.
// c.keeping is held.
func (c *coordinator) keepOver(ctx context.Context, k key, stored *kept) error {
	j, err := c.projection.openOver(ctx, k)
	if err != nil {
		return err
	}
	s := j.Snapshot()
	if s.State.Sandbox.State != protocol.StateDeleted || s.State.Sandbox.HistoryPurged {
		c.projection.forgetOver(k) // it is not as it was taken for: the log has another history, or none
		return nil
	}
	c.cfg.Probe("snapshot-before-write")
	if err := c.projection.execs.StoreThrough(ctx, k, s); err != nil {
		return err
	}
	if err := c.conn.WriteOver(ctx, k.Tenant, k.ID, s); err != nil {
		return err
	}
	stored.at = jetstream.Position{Record: s.Record, Batch: s.Batch}
	c.projection.overIsSaved(k, s.Record)
	c.projection.execs.Forget(k)
	return nil
}

// overIsSaved notes that the record of a sandbox that is over is stored.
func (p *projection) overIsSaved(k key, record uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o, over := p.over[k]
	if !over || o.record != record {
		return
	}
	o.saved = true
	p.over[k] = o
	delete(p.ending, k)
	delete(p.journals, k)
}
