package coordinator

import (
	"context"
	"math"
	"sync"
	"time"
)

// purgesAtOnce is how many purges run concurrently. purgesPerScan is how many purges run before the lease is checked
// and the sandboxes due for a purge are listed again.
const (
	purgesAtOnce  = 4
	purgesPerScan = 1000
)

// purgeDeleted purges the histories of sandboxes that were deleted long ago.
func (w *watchdog) purgeDeleted(ctx context.Context) error {
	return w.eachScan(ctx, func() {
		due := w.projection.read.deletedBefore(w.conn.Now().Add(-w.cfg.CleanupTTL), purgesPerScan)
		slots := make(chan struct{}, purgesAtOnce)
		var group sync.WaitGroup
		for _, k := range due {
			slots <- struct{}{}
			if ctx.Err() != nil || w.lease.Check() != nil {
				break
			}
			group.Go(func() {
				defer func() { <-slots }()
				if err := w.purge(ctx, k); err != nil && ctx.Err() == nil {
					w.log.Warn("could not purge a deleted sandbox; trying again later", "sandbox", k.ID, "error", err)
				}
			})
		}
		group.Wait()
	})
}

// purge removes all stored data of a deleted sandbox.
func (w *watchdog) purge(ctx context.Context, k key) error {
	w.storing.Lock()
	defer w.storing.Unlock()
	if w.isCompacting(k) {
		return nil // the next scan tries again
	}
	if err := w.freeName(ctx, k); err != nil {
		return err
	}
	if err := w.conn.PurgeHistory(ctx, k.Tenant, k.ID); err != nil {
		return err
	}
	w.output.Load().purged(k)
	w.projection.forgetDeleted(k)
	return nil
}

// freeName frees the name of a sandbox before the sandbox's history is purged.
func (w *watchdog) freeName(ctx context.Context, k key) error {
	if !w.projection.read.deletedHasName(k) {
		return nil
	}
	handles, err := w.readDeletedHandles(ctx, []deletedRow{{key: k}})
	if err != nil || handles[0] == nil || handles[0].Name == "" {
		return err
	}
	return w.conn.FreeName(ctx, k.Tenant, handles[0].Name, k.ID)
}

// forgetPurged forgets the sandboxes that the leader has purged. It does so only while this coordinator does not lead.
func (c *coordinator) forgetPurged(ctx context.Context) error {
	checked := map[key]time.Time{}
	// A sandbox that is due may not be purged yet: the leader may have another cleanup_ttl, or much to purge. The pause
	// limits how often such a sandbox is checked.
	pause := max(c.cfg.Timing.Scan, min(c.cfg.CleanupTTL/10, time.Minute))
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if c.elected.Load() {
			clear(checked)
		} else {
			c.forgetSomePurged(ctx, checked, pause)
		}
	}
}

// forgetSomePurged checks some of the sandboxes that are due to be purged, and checks no sandbox twice within the given
// pause.
func (c *coordinator) forgetSomePurged(ctx context.Context, checked map[key]time.Time, pause time.Duration) {
	const limit = 100 // how many sandboxes one call checks
	n := 0
	for _, k := range c.projection.read.deletedBefore(c.conn.Now().Add(-c.cfg.CleanupTTL), math.MaxInt) {
		if time.Since(checked[k]) < pause {
			continue
		}
		if n++; n > limit || ctx.Err() != nil {
			return
		}
		purged, err := c.conn.Purged(ctx, k.Tenant, k.ID)
		switch {
		case err != nil:
			c.log.Debug("could not determine whether a sandbox was purged", "sandbox", k.ID, "error", err)
		case purged:
			c.projection.forgetDeleted(k)
			delete(checked, k)
			continue
		}
		checked[k] = time.Now()
	}
}
