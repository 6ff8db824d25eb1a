package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const standsBy = "decides requests, and stands by to schedule"

// elected says whether this coordinator holds the scheduler's lock.
type elected struct{ atomic.Bool }

// campaign tries to get the scheduler's lock, again and again, and schedules while it has it.
func (c *coordinator) campaign(ctx context.Context) error {
	holder := jetstream.Holder{Name: c.cfg.Name, Instance: ulid.Make().String()}
	for {
		lease, err := c.conn.AcquireScheduler(ctx, holder)
		if err == nil {
			c.log.Info("this coordinator schedules", "token", lease.Token())
			c.lead(ctx, lease)
		} else if held := (*jetstream.HeldError)(nil); !errors.As(err, &held) && ctx.Err() == nil {
			c.log.Warn("the scheduler's lock is not to be had", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// lead schedules and watches until the lease is lost or ctx ends.
func (c *coordinator) lead(ctx context.Context, lease *jetstream.Lease) {
	leading, stop := context.WithCancel(ctx)
	defer stop()
	group, leading := errgroup.WithContext(leading)
	group.Go(func() error { return lease.Run(leading) })
	group.Go(func() error { return c.schedule(leading, lease) })
	group.Go(func() error { return c.watch(leading, lease) })
	group.Go(func() error { return c.watchReservations(leading) })
	group.Go(func() error { return c.snapshots(leading, lease) })
	group.Go(func() error { return c.keepBlobs(leading, lease) })
	group.Go(func() error { return c.dropImageFiles(leading, lease) })
	c.elected.Store(true)
	c.cfg.OnState(true, "decides requests, and schedules")
	err := group.Wait()
	c.elected.Store(false)
	c.cfg.OnState(true, standsBy)
	if ctx.Err() == nil {
		c.log.Warn("this coordinator no longer schedules", "error", err)
		return
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := lease.Release(release); err != nil {
		c.log.Warn("the scheduler's lock is not given up, and will end by itself", "error", err)
	}
}

// schedule places what is pending, each time something changes.
func (c *coordinator) schedule(ctx context.Context, lease *jetstream.Lease) error {
	ticker := time.NewTicker(c.cfg.Timing.Scan)
	defer ticker.Stop()
	for {
		if err := lease.Check(); err == nil {
			c.assignPending(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.projection.wake:
		case <-ticker.C:
		}
	}
}

// waiting lists the sandboxes that wait for a host, the oldest first: those that have none, and
// those that were not ready yet when theirs was lost.
func (c *coordinator) waiting(hosts []*protocol.Host) []*protocol.Sandbox {
	lost := map[string]bool{}
	for _, h := range hosts {
		lost[h.HostID] = h.State == protocol.HostLost
	}
	var list []*protocol.Sandbox
	for _, b := range c.projection.all() {
		if b.State == protocol.StatePending && (!b.Assigned || lost[b.HostID] && !b.Resuming) {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b *protocol.Sandbox) int {
		return cmp.Or(a.StateChangedAt.Compare(b.StateChangedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

func (c *coordinator) assignPending(ctx context.Context) {
	hosts, images := c.hosts.list(), c.images.list()
	for _, b := range c.waiting(hosts) {
		if ctx.Err() != nil {
			return
		}
		if err := c.assign(ctx, b, hosts, images); err != nil {
			c.log.Warn("a sandbox is not placed, and will be later", "sandbox", b.ID, "error", err)
		}
	}
}

// assign places one sandbox, and counts it on its host for the next.
func (c *coordinator) assign(ctx context.Context, b *protocol.Sandbox, hosts []*protocol.Host, images imageTable) error {
	j := c.projection.journal(key{b.Tenant, b.ID})
	why := impossible(b, hosts)
	if why == nil && time.Since(b.StateChangedAt) > c.cfg.Timing.Image {
		why = nowhere(b, hosts, images, c.images.imported())
	}
	if why != nil {
		_, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) { return decideFail(s, why) })
		return err
	}
	chosen, _ := place(b, hosts, images)
	if chosen == nil {
		return nil
	}
	there, err := specOn(b, chosen)
	if err != nil {
		return err
	}
	events, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		return decideAssign(s, b.Generation, chosen.Worker, chosen.HostID, there)
	})
	if err != nil || len(events) == 0 {
		return err
	}
	usageOf(there).addTo(chosen)
	return nil
}
