package coordinator

import (
	"cmp"
	"context"
	"math"
	"sync"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// OutputBudget says how much output the log keeps of one sandbox and of one tenant. Who has more loses its
// own oldest. When the log of output is seven eighths full, the tenants and sandboxes that have most lose
// theirs: otherwise the server would remove the oldest output of all tenants.
type OutputBudget struct {
	Sandbox protocol.Bytes // default: an eighth of what the log may have, or 1 GiB where it has no limit
	Tenant  protocol.Bytes // default: what the log has room for
}

func (o OutputBudget) check() error {
	if o.Sandbox < 0 || o.Tenant < 0 {
		return protocol.Invalid("coordinator.output_sandbox_bytes, coordinator.output_tenant_bytes", "must not be negative")
	}
	return nil
}

// limits are the budget in a log with so much room.
func (o OutputBudget) limits(room jetstream.OutputRoom) outputLimits {
	l := outputLimits{sandbox: int64(o.Sandbox), Tenant: int64(o.Tenant), all: room.Limit}
	switch {
	case l.sandbox == 0 && room.Limit > 0:
		l.sandbox = room.Limit / 8
	case l.sandbox == 0:
		l.sandbox = 1 << 30
	}
	return l
}

// How often what is stored is read. It is not read as it comes: what it reads the server keeps in memory for
// ten seconds, and by then that has let go of what was just written.
const (
	outputPart  = 32 // at once where so much of what may be kept came: a 32nd
	outputLooks = 15 // else after so many looks, if any came
)

// outputKeeper is what the leader knows of the output that is kept.
type outputKeeper struct {
	mu    sync.Mutex
	usage *outputUsage
	next  uint64 // record that is to be read next
	bytes int64  // stored when it was read last
	looks int    // since then
}

// boundOutput removes output that is beyond a budget, for as long as the lease lasts.
func (c *coordinator) boundOutput(ctx context.Context, lease *jetstream.Lease) error {
	return c.again(ctx, "bound the output that is kept", func() error {
		room, err := c.conn.OutputRoom(ctx)
		if err != nil {
			return err
		}
		k := &outputKeeper{usage: newOutputUsage(c.cfg.Output.limits(room).sandbox / outputPieces), next: 1}
		c.budget.Store(k)
		defer c.budget.Store(nil)
		for {
			if err := c.lookAtOutput(ctx, lease, k); err != nil {
				return err
			}
			if !sleep(ctx, c.cfg.Timing.Output) {
				return ctx.Err()
			}
		}
	})
}

// purged notes that nothing of a sandbox's output is left. k may be nil.
func (k *outputKeeper) purged(of key) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.usage.forget(of, math.MaxUint64)
}

// lookAtOutput reads what came, where that is enough, and removes what is beyond a budget.
func (c *coordinator) lookAtOutput(ctx context.Context, lease *jetstream.Lease, k *outputKeeper) error {
	room, err := c.conn.OutputRoom(ctx)
	if err != nil {
		return err
	}
	limits := c.cfg.Output.limits(room)
	k.looks++
	most := cmp.Or(limits.all, 8*limits.sandbox)
	if room.Last+1 == k.next || k.looks < outputLooks && room.Bytes-k.bytes < most/outputPart && room.Bytes < lessEighth(most) {
		return nil
	}
	k.next, err = c.conn.OutputSizes(ctx, k.next, func(m jetstream.StoredOutput) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.usage.add(m)
	})
	if err != nil {
		return err
	}
	k.looks, k.bytes = 0, room.Bytes
	return c.cutOutput(ctx, lease, k, limits, room)
}

func (c *coordinator) cutOutput(ctx context.Context, lease *jetstream.Lease, k *outputKeeper, limits outputLimits, room jetstream.OutputRoom) error {
	k.mu.Lock()
	k.usage.expire(room.First)
	cuts := k.usage.cuts(limits, room.Bytes)
	k.mu.Unlock()
	for _, cut := range cuts {
		if err := lease.Check(); err != nil {
			return err
		}
		if err := c.conn.PurgeOutput(ctx, cut.Tenant, cut.ID, cut.through); err != nil {
			return err
		}
		c.log.Info("a sandbox has lost its oldest output: it, or its tenant, has more than may be kept", "tenant", cut.Tenant, "sandbox", cut.ID, "bytes", cut.bytes)
		k.bytes -= cut.bytes
		k.mu.Lock()
		k.usage.forget(cut.key, cut.through)
		k.mu.Unlock()
	}
	return nil
}
