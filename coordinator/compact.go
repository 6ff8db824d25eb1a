package coordinator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Histories says how much of the history of a living sandbox the event log keeps, and for how long the rest
// is kept.
type Histories struct {
	Keep       int            // newest messages that stay in the log, from 1; default 1000
	MinBatches int            // older ones are moved out when they are more than so many, from 0; default 5000
	MinBytes   protocol.Bytes // or more than so much; default 4 MiB
	MaxAge     time.Duration  // segments are kept for this time after they were stored; 0: as long as the sandbox
}

func (h *Histories) setDefaults() error {
	if h.Keep == 0 {
		h.Keep = 1000
	}
	if h.MinBatches == 0 {
		h.MinBatches = 5000
	}
	if h.MinBytes == 0 {
		h.MinBytes = 4 << 20
	}
	for field, value := range map[string]int64{"history_keep": int64(h.Keep), "history_batches": int64(h.MinBatches),
		"history_bytes": int64(h.MinBytes), "history_max_age": int64(h.MaxAge)} {
		if value < 0 {
			return protocol.Invalid("coordinator."+field, "must not be negative, got %d", value)
		}
	}
	return nil
}

// lookedAt is what a leader knows of the length of a history.
type lookedAt struct {
	sequence uint64    // of the sandbox's last event, when it was looked at
	waits    bool      // something is in a segment, and in the log too
	dropAt   time.Time // when the oldest segment is too old; zero: never
}

// due says whether a history is to be looked at again. It has at most as many messages as events.
func (l *lookedAt) due(b *protocol.Sandbox, h *Histories, now time.Time) bool {
	if b.State == protocol.StateDeleted || b.Sequence <= uint64(h.Keep) {
		return false
	}
	step := uint64(max(1, min(h.Keep, h.MinBatches)/4))
	return b.Sequence >= l.sequence+step || l.waits || !l.dropAt.IsZero() && now.After(l.dropAt)
}

// compact moves the older parts of long histories out of the log, one history after another.
func (c *coordinator) compact(ctx context.Context, lease *jetstream.Lease) error {
	ticker := time.NewTicker(c.cfg.Timing.Compact)
	defer ticker.Stop()
	looked := map[key]*lookedAt{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		c.compactAll(ctx, lease, looked)
	}
}

// compactAll looks at every history that is due, until NATS does not answer.
func (c *coordinator) compactAll(ctx context.Context, lease *jetstream.Lease, looked map[key]*lookedAt) {
	// An older worker would take a history without its beginning for none, and remove what it has of the sandbox.
	reads := map[string]bool{}
	for _, h := range c.hosts.list() {
		reads[h.HostID] = h.ReadsSegments
	}
	all := c.projection.everyLiving()
	there := make(map[key]bool, len(looked))
	for _, b := range all {
		if k := (key{Tenant: b.Tenant, ID: b.ID}); looked[k] != nil {
			there[k] = true
		}
	}
	maps.DeleteFunc(looked, func(k key, _ *lookedAt) bool { return !there[k] })
	for _, b := range all {
		k := key{Tenant: b.Tenant, ID: b.ID}
		l := looked[k]
		if l == nil {
			l = &lookedAt{}
		}
		if !l.due(b, &c.cfg.Histories, c.conn.Now()) || b.HostID != "" && !reads[b.HostID] {
			continue
		}
		looked[k] = l
		if ctx.Err() != nil || away(c.compactOne(ctx, lease, k, b, l)) {
			return
		}
	}
}

// compactOne compacts one history, unless it is being purged.
func (c *coordinator) compactOne(ctx context.Context, lease *jetstream.Lease, k key, b *protocol.Sandbox, l *lookedAt) error {
	if !c.takeForCompaction(k) {
		return nil
	}
	defer c.compacting.Store(nil)
	done, err := c.conn.Compact(ctx, k.Tenant, k.ID, jetstream.Compaction{
		Keep: c.cfg.Histories.Keep, MinBatches: c.cfg.Histories.MinBatches, MinBytes: int64(c.cfg.Histories.MinBytes),
		MaxAge: c.cfg.Histories.MaxAge, Guard: lease.Check, Probe: c.cfg.Probe,
		IndexedThrough: func(ctx context.Context) (uint64, error) { return c.execIDsStoredThrough(ctx, k) },
	})
	switch {
	case errors.Is(err, jetstream.ErrConflict):
		c.log.Info("somebody else compacts the same history", "sandbox", k.ID)
		return nil
	case err != nil:
		c.log.Warn("a history stays in the log for now", "sandbox", k.ID, "error", err)
		return err
	}
	*l = lookedAt{sequence: b.Sequence, waits: done.Waits, dropAt: done.DropAt}
	if done.Segments+done.Dropped > 0 || done.Purged > 0 {
		c.log.Info("a history was compacted", "sandbox", k.ID, "segments", done.Segments, "messages", done.Messages, "dropped", done.Dropped, "purged_through", done.Purged)
	}
	return nil
}

// takeForCompaction notes that a history is compacted, which keeps it from being purged at the same time. It reports
// false where it was purged.
func (c *coordinator) takeForCompaction(k key) bool {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if c.projection.get(k) == nil {
		return false
	}
	c.compacting.Store(&k)
	return true
}

// compacted says whether a history is being compacted now; c.keeping is held.
func (c *coordinator) compacted(k key) bool {
	now := c.compacting.Load()
	return now != nil && *now == k
}

// everyLiving returns the handles of all living sandboxes.
func (p *projection) everyLiving() []*protocol.Sandbox {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Collect(maps.Values(p.sandboxes))
}

// execIDsStoredThrough stores a sandbox's execs and returns the record up to which the index has them all: events
// before it are no longer needed to know which ids were used.
func (c *coordinator) execIDsStoredThrough(ctx context.Context, k key) (record uint64, err error) {
	s := c.projection.journal(k).Snapshot()
	if err := c.projection.execs.StoreThrough(ctx, k, s); err != nil {
		return 0, err
	}
	return s.Record, nil
}
