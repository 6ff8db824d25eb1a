package coordinator

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Histories says how much of the history of a living sandbox the event log keeps, and for how long segments keep the
// older messages.
type Histories struct {
	Keep       int            // how many of the newest messages stay in the log, at least 1; default 1000
	MinBatches int            // older messages move to segments when there are more than this; default 5000
	MinBytes   protocol.Bytes // older messages also move when together they have more bytes than this; default 4 MiB
	MaxAge     time.Duration  // how long a segment is kept after it was stored; 0: until the sandbox is purged
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

// compactor moves the older parts of long histories from the log to segments, one history after another.
type compactor struct {
	*leader
	known map[key]*historyLength
}

// historyLength is what the leader knows about the length of a history.
type historyLength struct {
	sequence   uint64    // number of the sandbox's last event at the last compaction
	unfinished bool      // some messages are in a segment and also still in the log
	dropAt     time.Time // when the oldest segment expires; zero: never
}

// due reports whether a history may have messages to move, or segments that have expired. It counts events instead of
// messages: a history never has more messages than events.
func (l *historyLength) due(b *protocol.Sandbox, h *Histories, now time.Time) bool {
	if b.State == protocol.StateDeleted || b.Sequence <= uint64(h.Keep) {
		return false
	}
	step := uint64(max(1, min(h.Keep, h.MinBatches)/4))
	return b.Sequence >= l.sequence+step || l.unfinished || !l.dropAt.IsZero() && now.After(l.dropAt)
}

func newCompactor(l *leader) *compactor {
	return &compactor{leader: l, known: map[key]*historyLength{}}
}

func (c *compactor) run(ctx context.Context) error {
	ticker := time.NewTicker(c.cfg.Timing.Compact)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		c.compactDue(ctx)
	}
}

// compactDue compacts every history that is due. It stops if NATS does not answer.
func (c *compactor) compactDue(ctx context.Context) {
	// An older worker cannot read segments. If the beginning of a history were in a segment, such a worker would find
	// no history and remove the sandbox.
	reads := map[string]bool{}
	for _, h := range c.hosts.list() {
		reads[h.HostID] = h.ReadsSegments
	}
	living := c.projection.read.living()
	c.forgetOthers(living)
	for _, b := range living {
		k := key{Tenant: b.Tenant, ID: b.ID}
		l := c.known[k]
		if l == nil {
			l = &historyLength{}
		}
		if !l.due(b, &c.cfg.Histories, c.conn.Now()) || b.HostID != "" && !reads[b.HostID] {
			continue
		}
		c.known[k] = l
		if ctx.Err() != nil || unavailable(c.compact(ctx, k, b, l)) {
			return
		}
	}
}

// forgetOthers drops what is known about the histories of sandboxes that are no longer living.
func (c *compactor) forgetOthers(living []*protocol.Sandbox) {
	known := make(map[key]bool, len(c.known))
	for _, b := range living {
		if k := (key{Tenant: b.Tenant, ID: b.ID}); c.known[k] != nil {
			known[k] = true
		}
	}
	maps.DeleteFunc(c.known, func(k key, _ *historyLength) bool { return !known[k] })
}

// compact compacts one history, unless the sandbox is no longer living.
func (c *compactor) compact(ctx context.Context, k key, b *protocol.Sandbox, l *historyLength) error {
	if !c.startCompacting(k) {
		return nil
	}
	defer c.compacting.Store(nil)
	done, err := c.conn.Compact(ctx, k.Tenant, k.ID, jetstream.Compaction{
		Keep: c.cfg.Histories.Keep, MinBatches: c.cfg.Histories.MinBatches, MinBytes: int64(c.cfg.Histories.MinBytes),
		MaxAge: c.cfg.Histories.MaxAge, Guard: c.lease.Check, Probe: c.cfg.Probe,
		IndexedThrough: func(ctx context.Context) (uint64, error) { return c.execIDsStoredThrough(ctx, k) },
	})
	switch {
	case errors.Is(err, jetstream.ErrConflict):
		c.log.Info("another coordinator is compacting the same history", "sandbox", k.ID)
		return nil
	case err != nil:
		c.log.Warn("could not compact a history; trying again later", "sandbox", k.ID, "error", err)
		return err
	}
	*l = historyLength{sequence: b.Sequence, unfinished: done.Waits, dropAt: done.DropAt}
	if done.Segments+done.Dropped > 0 || done.Purged > 0 {
		c.log.Info("a history was compacted", "sandbox", k.ID, "segments", done.Segments, "messages", done.Messages,
			"dropped", done.Dropped, "purged_through", done.Purged)
	}
	return nil
}

// startCompacting records that a history is being compacted, so that it is not purged at the same time. It returns
// false if the sandbox is no longer living.
func (c *compactor) startCompacting(k key) bool {
	c.storing.Lock()
	defer c.storing.Unlock()
	if c.projection.read.get(k) == nil {
		return false
	}
	c.compacting.Store(&k)
	return true
}

// isCompacting reports whether a history is being compacted. The caller holds c.storing.
func (c *coordinator) isCompacting(k key) bool {
	now := c.compacting.Load()
	return now != nil && *now == k
}

// execIDsStoredThrough stores the index of a sandbox's execs, and returns the record up to which the stored index is
// complete. Events before that record are no longer needed to know which exec ids were used.
func (c *compactor) execIDsStoredThrough(ctx context.Context, k key) (record uint64, err error) {
	s := c.projection.journal(k).Snapshot()
	if err := c.projection.execs.StoreThrough(ctx, k, s); err != nil {
		return 0, err
	}
	return s.Record, nil
}
