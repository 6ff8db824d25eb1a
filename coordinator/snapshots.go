package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// snapshots writes what changed since the last round, and then how far the log is covered.
func (c *coordinator) snapshots(ctx context.Context, lease *jetstream.Lease) error {
	ticker := time.NewTicker(c.cfg.Timing.Snapshot)
	defer ticker.Stop()
	stored, restored := map[key]*kept{}, 0
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		c.projection.mu.RLock()
		before := restored
		restored = c.projection.restored
		c.projection.mu.RUnlock()
		if restored != before { // what was stored may have been lost with the log
			clear(stored)
		}
		if err := c.snapshot(ctx, lease, stored); err != nil {
			c.log.Warn("snapshots are written later", "error", err)
		}
	}
}

// kept is what this leader stored of a sandbox. Each write says which one it replaces: one of an earlier
// leader that comes late loses.
type kept struct {
	at       jetstream.Position // of the snapshot
	revision uint64             // of the snapshot; 0: not known
	ids      int                // so many ids of execs
	page     uint64             // revision of the last page of them; 0: not known
}

// snapshot writes the snapshots of one round. The checkpoint says that every event up to it is in some
// snapshot: where one could not be written, it goes as far as that sandbox's last one.
func (c *coordinator) snapshot(ctx context.Context, lease *jetstream.Lease, stored map[key]*kept) error {
	c.projection.mu.RLock()
	covered := c.projection.followed
	c.projection.mu.RUnlock()
	for _, b := range c.projection.all() {
		k := key{b.Tenant, b.ID}
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
			c.log.Warn("a snapshot is not written, and will be later", "sandbox", k.id, "error", err)
			if at := stored[k].at; at.Record < covered.Record {
				covered = at
			}
		}
	}
	if covered.Record == 0 {
		return nil
	}
	return c.conn.WriteCheckpoint(ctx, covered)
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
	if c.projection.get(k) == nil {
		return nil
	}
	j := c.projection.journal(k)
	if j.Position() == stored.at {
		return nil
	}
	s := j.Snapshot()
	if !s.State.Exists() {
		return nil
	}
	ids := c.projection.execIDsSince(k, stored.ids)
	c.cfg.Probe("snapshot-before-write")
	if err := c.storeExecIDs(ctx, k, ids, stored); err != nil {
		return err
	}
	revision, err := c.conn.WriteSnapshot(ctx, k.tenant, k.id, s, stored.revision)
	if err != nil {
		stored.revision = 0
		return err
	}
	stored.at, stored.revision = jetstream.Position{Record: s.Record, Batch: s.Batch}, revision
	return nil
}
