package coordinator

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// watch drives everything that has not ended towards an end, without depending on who owns it. Each of its parts
// runs by itself, so that no deadline waits for hosts, for workers that are told, or for what is purged.
func (c *coordinator) watch(ctx context.Context, lease *jetstream.Lease) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.watchDeadlines(ctx, lease) })
	group.Go(func() error { return c.watchActive(ctx, lease) })
	group.Go(func() error { return c.watchHosts(ctx, lease) })
	group.Go(func() error { return c.tellChanged(ctx, lease) })
	group.Go(func() error { return c.tellOwing(ctx, lease) })
	group.Go(func() error { return c.purgeOver(ctx, lease) })
	return group.Wait()
}

// each calls f at each scan while the lease is held, until ctx ends.
func (c *coordinator) each(ctx context.Context, lease *jetstream.Lease, f func()) error {
	ticker := time.NewTicker(c.cfg.Timing.Scan)
	defer ticker.Stop()
	for {
		if lease.Check() == nil {
			f()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// deadlinesAtOnce is how many sandboxes are decided about at a time whose deadlines have come.
const deadlinesAtOnce = 64

// watchDeadlines looks at each living sandbox when its next deadline has come.
func (c *coordinator) watchDeadlines(ctx context.Context, lease *jetstream.Lease) error {
	slots := make(chan struct{}, deadlinesAtOnce)
	var group sync.WaitGroup
	defer group.Wait()
	for {
		now := c.conn.Now()
		keys, next := c.projection.dueSandboxes(now, deadlinesAtOnce)
		for i, k := range keys {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				for _, k := range keys[i:] { // when this coordinator leads again
					c.projection.lookAt(k, now)
				}
				return ctx.Err()
			}
			group.Go(func() {
				defer func() { <-slots }()
				c.meetDeadline(ctx, lease, k)
			})
		}
		if len(keys) == deadlinesAtOnce {
			continue
		}
		pause := c.cfg.Timing.Scan // the store's time may be set, so no timer is trusted for long
		if !next.IsZero() {
			pause = min(pause, max(next.Sub(c.conn.Now()), time.Millisecond))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.projection.alarm:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// meetDeadline does for one sandbox what its deadlines call for, and says when it is to be looked at again.
func (c *coordinator) meetDeadline(ctx context.Context, lease *jetstream.Lease, k key) {
	b := c.projection.get(k)
	if b == nil {
		return
	}
	err := lease.Check()
	if err == nil {
		err = c.watchSandbox(ctx, lease, b)
	}
	if err != nil && ctx.Err() == nil {
		c.log.Warn("the watchdog will look again", "sandbox", b.ID, "error", err)
	}
	if b = c.projection.get(k); b == nil {
		return
	}
	// What is due already is tried again, and what was not due yet after all has its own time.
	at, now := c.projection.look(b), c.conn.Now()
	if err != nil || !at.IsZero() && !at.After(now) {
		at = now.Add(c.cfg.Timing.Scan)
	}
	c.projection.lookAt(k, at)
}

// watchSandbox does for one sandbox what its deadlines call for, decided on its newest state.
func (c *coordinator) watchSandbox(ctx context.Context, lease *jetstream.Lease, b *protocol.Sandbox) error {
	if c.due(b, c.hosts.byID(b.HostID), c.conn.Now()) == nil {
		return nil
	}
	_, err := c.projection.journal(key{Tenant: b.Tenant, ID: b.ID}).Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		if err := lease.Check(); err != nil {
			return nil, err
		}
		// It may have moved on, or have had a part of its execs ended by this decision.
		if decide := c.due(&s.Sandbox, c.hosts.byID(s.Sandbox.HostID), c.conn.Now()); decide != nil {
			return decide(s)
		}
		return nil, nil
	})
	return err
}

// watchActive looks at the execs that have not ended.
func (c *coordinator) watchActive(ctx context.Context, lease *jetstream.Lease) error {
	c.unstarted, c.overdue = newUnstarted(), newUnstarted()
	return c.each(ctx, lease, func() {
		active := c.projection.withExecs()
		c.unstarted.begin()
		c.overdue.begin()
		if len(active) == 0 {
			return
		}
		hosts, now := map[string]*protocol.Host{}, moment{time.Now(), c.conn.Now()}
		for _, h := range c.hosts.list() {
			hosts[h.HostID] = h
		}
		for _, b := range active {
			if err := c.watchExecs(ctx, key{Tenant: b.Tenant, ID: b.ID}, b, hosts[b.HostID], now); err != nil && ctx.Err() == nil {
				c.log.Warn("the watchdog will look again", "sandbox", b.ID, "error", err)
			}
		}
	})
}

// lostRounds is how many scans apart what is on a lost host is looked at again: its last words may come late.
const lostRounds = 10

// watchHosts finds out which of the hosts that are not heard of are lost, and has what is on a lost one looked at.
func (c *coordinator) watchHosts(ctx context.Context, lease *jetstream.Lease) error {
	tried, lostSince, lost, round := map[string]time.Time{}, map[string]time.Time{}, map[string]bool{}, 0
	return c.each(ctx, lease, func() {
		round++
		hosts, list := map[string]*protocol.Host{}, c.hosts.list()
		for _, h := range list {
			hosts[h.HostID] = h
		}
		c.seizeSilent(ctx, hosts, tried)
		c.carryOutWishes(ctx, lease, hosts, lostSince)
		c.moves.begin(list, c.images.list())
		c.lookAtWished(hosts, round)
		for id, h := range hosts {
			is := h.State == protocol.HostLost
			if is != lost[id] || is && round%lostRounds == 0 {
				lost[id] = is
				for _, k := range c.projection.on(id) {
					c.projection.lookAt(k, c.conn.Now())
				}
			}
		}
	})
}

// purgesAtOnce is how many purges are under way at a time, and purgesARound how many follow each other before it is
// looked whether the lease is held, and whether others are due longer.
const (
	purgesAtOnce = 4
	purgesARound = 1000
)

// purgeOver takes away what is kept of sandboxes that were deleted long ago.
func (c *coordinator) purgeOver(ctx context.Context, lease *jetstream.Lease) error {
	return c.each(ctx, lease, func() {
		due := c.projection.endedBefore(c.conn.Now().Add(-c.cfg.CleanupTTL), purgesARound)
		slots := make(chan struct{}, purgesAtOnce)
		var group sync.WaitGroup
		for _, k := range due {
			slots <- struct{}{}
			if ctx.Err() != nil || lease.Check() != nil {
				break
			}
			group.Go(func() {
				defer func() { <-slots }()
				if err := c.purge(ctx, k); err != nil && ctx.Err() == nil {
					c.log.Warn("a sandbox is purged later", "sandbox", k.ID, "error", err)
				}
			})
		}
		group.Wait()
	})
}

// forgetPurged has a coordinator that does not lead forget what the leader has purged.
func (c *coordinator) forgetPurged(ctx context.Context) error {
	const atOnce = 100 // looks a scan
	looked := map[key]time.Time{}
	pause := max(c.cfg.Timing.Scan, min(c.cfg.CleanupTTL/10, time.Minute)) // the leader may have other plans, or much to purge
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if c.elected.Load() {
			clear(looked)
			continue
		}
		n := 0
		for _, k := range c.projection.endedBefore(c.conn.Now().Add(-c.cfg.CleanupTTL), math.MaxInt) {
			if time.Since(looked[k]) < pause {
				continue
			}
			if n++; n > atOnce || ctx.Err() != nil {
				break
			}
			purged, err := c.conn.Purged(ctx, k.Tenant, k.ID)
			switch {
			case err != nil:
				c.log.Debug("whether a sandbox was purged is asked later", "sandbox", k.ID, "error", err)
			case purged:
				c.projection.forgetOver(k)
				delete(looked, k)
				continue
			}
			looked[k] = time.Now()
		}
	}
}

// owes says whether a worker has something to do about a sandbox.
func owes(b *protocol.Sandbox) bool {
	switch b.State {
	case protocol.StatePending:
		return b.Assigned
	case protocol.StateReady:
		return b.Desired != protocol.StateReady || b.ActiveExecs > 0
	}
	return b.State == protocol.StateDeleting
}

// due returns the decision that a sandbox's deadlines call for, nil for none.
func (c *coordinator) due(b *protocol.Sandbox, host *protocol.Host, now time.Time) func(s *protocol.State) ([]protocol.Event, error) {
	fail := func(code protocol.Code, reason, format string, args ...any) func(*protocol.State) ([]protocol.Event, error) {
		return func(s *protocol.State) ([]protocol.Event, error) {
			return decideFail(s, protocol.Errorf(code, reason, format, args...))
		}
	}
	whyNot := lazily(func() string { return c.whyNot(b, now) })
	since := now.Sub(b.StateChangedAt)
	lost := host == nil || host.State == protocol.HostLost
	if c.hosts.forgotten(b.HostID) {
		if decide := dueForgotten(b); decide != nil {
			return decide
		}
	}
	if host != nil && host.Drain != nil {
		if decide := c.dueDrained(b, host, now); decide != nil {
			return decide
		}
	}
	switch {
	case !b.ExpiresAt.IsZero() && now.After(b.ExpiresAt) && b.Desired != protocol.StateDeleted:
		return func(s *protocol.State) ([]protocol.Event, error) { return decideDelete(s, "", protocol.ReasonTTL) }
	case b.State == protocol.StatePending && !b.Assigned && now.After(c.queueDeadline(b)):
		return fail(protocol.DeadlineExceeded, protocol.ReasonQueueTimeout, "no host took the sandbox within %s%s", b.Spec.QueueTimeout, whyNot)
	case b.State == protocol.StatePending && b.Assigned && !lost && now.Sub(b.AssignedAt) > b.Spec.CreateTimeout.Std()+c.cfg.Timing.Overdue:
		// The worker has a deadline of its own, and reports it better; this is for one that hangs.
		return fail(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout, "not ready within %s", b.Spec.CreateTimeout)
	case b.State == protocol.StatePending && b.Assigned && lost && now.After(c.queueDeadline(b)):
		// When the host comes back, its worker discards what it made, and halts what was resumed.
		return fail(protocol.Unavailable, protocol.ReasonHostLost, "host %s (worker %s) was lost before the sandbox was ready, and none took it within %s%s",
			b.HostID, b.Worker, c.queueDeadline(b).Sub(b.AssignedAt), whyNot)
	case b.State == protocol.StateReady && lost && host != nil && b.Spec.OnHostLoss == protocol.OnHostLossFail:
		return fail(protocol.Unavailable, protocol.ReasonHostLost, "host %s (worker %s) was lost", b.HostID, b.Worker)
	case lost && host != nil && replaces(b):
		return func(s *protocol.State) ([]protocol.Event, error) {
			return decideReplace(s, protocol.Errorf(protocol.Unavailable, protocol.ReasonHostLost, "host %s (worker %s) was lost", b.HostID, b.Worker))
		}
	case b.State == protocol.StateReady && b.Desired == protocol.StateReady && b.ActiveExecs == 0 &&
		b.Spec.IdleTTL > 0 && now.Sub(b.ActiveAt) > b.Spec.IdleTTL.Std():
		return func(s *protocol.State) ([]protocol.Event, error) { return decideStop(s, "", protocol.ReasonIdleTTL) }
	case (b.State == protocol.StateStopped || b.State == protocol.StateFailed) && since > c.cfg.CleanupTTL:
		return func(s *protocol.State) ([]protocol.Event, error) {
			return decideDelete(s, "", protocol.ReasonCleanupTTL)
		}
	}
	return nil
}

// queueDeadline is until when a host must take a sandbox that is pending: its own one, or another,
// where the one that it was assigned to is lost. A lost host has at least as long to come back as it
// had for the sandbox.
func (c *coordinator) queueDeadline(b *protocol.Sandbox) time.Time {
	return queueDeadline(b, c.cfg.Timing.Overdue)
}

func queueDeadline(b *protocol.Sandbox, overdue time.Duration) time.Time {
	if !b.Assigned {
		return b.StateChangedAt.Add(b.Spec.QueueTimeout.Std())
	}
	return b.AssignedAt.Add(max(b.Spec.QueueTimeout.Std(), b.Spec.CreateTimeout.Std()+overdue))
}

// lazily is a text that is made when it is printed: most deadlines are looked at for nothing.
type lazily func() string

func (f lazily) String() string { return f() }

// whyNot says why hosts do not take a sandbox, of the first few of them.
func (c *coordinator) whyNot(b *protocol.Sandbox, now time.Time) string {
	return placement.Reasons(placement.WithoutExpiredRefusals(b, now), c.seen.hosts(c), c.images.list())
}

// seenHosts is the list of hosts as it was a moment ago: where ten thousand sandboxes fail at once, it is made once.
type seenHosts struct {
	mu   sync.Mutex
	at   time.Time
	list []*protocol.Host
}

func (s *seenHosts) hosts(c *coordinator) []*protocol.Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil || time.Since(s.at) > time.Second {
		s.list, s.at = c.hosts.list(), time.Now()
	}
	return s.list
}

// moment is one moment by two clocks. What this process counts itself goes by its own; what compares with
// the time of an event goes by the store's, which somebody may set.
type moment struct{ own, store time.Time }

// watchExecs ends execs whose end can no longer be learnt in time: their own timeout is over, and
// so is a margin for their worker to say so, in which it could; or they never started, and their host is lost.
func (c *coordinator) watchExecs(ctx context.Context, k key, b *protocol.Sandbox, host *protocol.Host, now moment) error {
	var overdue, unstarted []string
	reason, lost := protocol.ReasonInterrupted, host == nil || host.State == protocol.HostLost
	if b.State == protocol.StatePending || replaces(b) { // what was not started waits for the new one
		lost = false
	}
	if lost {
		reason = protocol.ReasonHostLost
	}
	j := c.projection.journal(k)
	j.View(func(s *protocol.State, _ uint64) {
		for _, x := range s.Active() {
			if x.State == protocol.ExecStateAccepted && c.unstarted.since(k, x.ID, now.own) > x.Spec.StartWithin() {
				unstarted = append(unstarted, x.ID)
				continue
			}
			late := x.State == protocol.ExecStateRunning && x.Spec.Timeout > 0 && now.store.Sub(x.StartedAt) > x.Spec.Timeout.Std()+x.Spec.Grace.Std()
			switch {
			case late && c.overdue.since(k, x.ID, now.own) > c.cfg.Timing.Overdue,
				x.State == protocol.ExecStateAccepted && lost && now.store.Sub(x.AcceptedAt) > c.cfg.Timing.Overdue:
				overdue = append(overdue, x.ID)
			}
		}
	})
	if len(unstarted) > 0 {
		if _, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
			return decideStartTimeouts(s, unstarted, execWaits(b, host))
		}); err != nil {
			return err
		}
	}
	if len(overdue) == 0 {
		return nil
	}
	_, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		return decideFailExecs(s, overdue, protocol.Errorf(protocol.Unavailable, reason,
			"worker %s has not reported the end of the exec in time; its exit code is not known", b.Worker))
	})
	return err
}

// seizeSilent takes the lock of hosts that are not heard of. Only when that succeeds is a host
// lost: its lease was over, so its worker changes nothing any more.
func (c *coordinator) seizeSilent(ctx context.Context, hosts map[string]*protocol.Host, tried map[string]time.Time) {
	if !c.conn.Connected() {
		return
	}
	for _, h := range hosts {
		worker := h.Worker
		if h.State != protocol.HostSuspect || h.HostID == "" || time.Since(tried[worker]) < c.cfg.Timing.Seize || !c.hosts.mayBeLost(worker) {
			continue
		}
		tried[worker] = time.Now()
		// Each try is a holder of its own, so that a worker that waits for the lock does not take two
		// of them for one that renews.
		holder := jetstream.Holder{Name: c.cfg.Name, Instance: ulid.Make().String(), Detail: "takes the lock of a silent host"}
		err := c.conn.SeizeHost(ctx, h.HostID, holder, func(uint64) error {
			if !c.hosts.mayBeLost(worker) {
				return nil // NATS was away in the midst of it
			}
			c.log.Warn("a host is lost", "worker", worker, "host", h.HostID)
			c.hosts.setLost(worker)
			h.State = protocol.HostLost
			return nil
		})
		if held := (*jetstream.HeldError)(nil); err != nil && !errors.As(err, &held) {
			c.log.Warn("whether a silent host is lost is not known", "worker", worker, "error", err)
		}
		c.projection.wakeUp()
	}
}

// purge takes away what is kept of a sandbox that was deleted long ago.
func (c *coordinator) purge(ctx context.Context, k key) error {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if c.compacted(k) {
		return nil // the next look finds it
	}
	if err := c.freeName(ctx, k); err != nil {
		return err
	}
	if err := c.conn.PurgeHistory(ctx, k.Tenant, k.ID); err != nil {
		return err
	}
	c.budget.Load().purged(k)
	c.projection.forgetOver(k)
	return nil
}
