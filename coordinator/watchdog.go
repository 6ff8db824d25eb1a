package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// watch drives everything that has not ended towards an end, without depending on who owns it. It
// looks at the fold of the whole log, so that nothing is overlooked because somebody forgot it.
func (c *coordinator) watch(ctx context.Context, lease *jetstream.Lease) error {
	ticker := time.NewTicker(c.cfg.Timing.Scan)
	defer ticker.Stop()
	told := map[key]time.Time{}
	seized := map[string]time.Time{}
	c.unstarted, c.overdue = newUnstarted(), newUnstarted()
	for {
		if lease.Check() == nil {
			hosts := map[string]*protocol.Host{}
			for _, h := range c.hosts.list() {
				hosts[h.HostID] = h
			}
			c.seizeSilent(ctx, hosts, seized)
			c.tellChanged()
			now := time.Now()
			c.unstarted.begin()
			c.overdue.begin()
			for _, b := range c.projection.all() {
				if ctx.Err() != nil {
					break
				}
				if err := c.watchSandbox(ctx, b, hosts[b.HostID], now, told); err != nil {
					c.log.Warn("the watchdog will look again", "sandbox", b.ID, "error", err)
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// watchSandbox does for one sandbox what its deadlines and its silence call for.
func (c *coordinator) watchSandbox(ctx context.Context, b *protocol.Sandbox, host *protocol.Host, now time.Time, told map[key]time.Time) error {
	k := key{b.Tenant, b.ID}
	if b.State == protocol.StateDeleted {
		delete(told, k)
	}
	if c.due(b, host, now) != nil {
		_, err := c.projection.journal(k).Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
			if s.Sandbox.HostID != b.HostID {
				return nil, nil // the host is not its own any more; the next scan looks again
			}
			// It may have moved on, or have had a part of its execs ended by this decision.
			if decide := c.due(&s.Sandbox, host, now); decide != nil {
				return decide(s)
			}
			return nil, nil
		})
		return err
	}
	if b.State == protocol.StateDeleted && now.Sub(b.StateChangedAt) > c.cfg.CleanupTTL {
		return c.purge(ctx, k, b)
	}
	if b.ActiveExecs > 0 {
		if err := c.watchExecs(ctx, k, b, host, now); err != nil {
			return err
		}
	}
	if host != nil && host.State == protocol.HostReady && owes(b) && now.Sub(told[k]) > c.cfg.Timing.Retell {
		if _, before := told[k]; before { // what was just decided is told already
			if err := c.conn.TellAbout(host.Worker, b.Tenant, b.ID); err != nil {
				return err
			}
		}
		told[k] = now
	} else if !owes(b) {
		delete(told, k)
	}
	return nil
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
	since := now.Sub(b.StateChangedAt)
	lost := host == nil || host.State == protocol.HostLost
	switch {
	case !b.ExpiresAt.IsZero() && now.After(b.ExpiresAt) && b.Desired != protocol.StateDeleted:
		return func(s *protocol.State) ([]protocol.Event, error) { return decideDelete(s, "", protocol.ReasonTTL) }
	case b.State == protocol.StatePending && !b.Assigned && now.After(c.queueDeadline(b)):
		return fail(protocol.DeadlineExceeded, protocol.ReasonQueueTimeout, "no host took the sandbox within %s%s", b.Spec.QueueTimeout, c.whyNot(b))
	case b.State == protocol.StatePending && b.Assigned && !lost && now.Sub(b.AssignedAt) > b.Spec.CreateTimeout.Std()+c.cfg.Timing.Overdue:
		// The worker has a deadline of its own, and reports it better; this is for one that hangs.
		return fail(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout, "not ready within %s", b.Spec.CreateTimeout)
	case b.State == protocol.StatePending && b.Assigned && lost && now.After(c.queueDeadline(b)):
		// When the host comes back, its worker discards what it made, and halts what was resumed.
		return fail(protocol.Unavailable, protocol.ReasonHostLost, "host %s (worker %s) was lost before the sandbox was ready, and none took it within %s%s",
			b.HostID, b.Worker, c.queueDeadline(b).Sub(b.AssignedAt), c.whyNot(b))
	case b.State == protocol.StateReady && lost && host != nil && b.Spec.OnHostLoss == protocol.OnHostLossFail:
		return fail(protocol.Unavailable, protocol.ReasonHostLost, "host %s (worker %s) was lost", b.HostID, b.Worker)
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
	if !b.Assigned {
		return b.StateChangedAt.Add(b.Spec.QueueTimeout.Std())
	}
	return b.AssignedAt.Add(max(b.Spec.QueueTimeout.Std(), b.Spec.CreateTimeout.Std()+c.cfg.Timing.Overdue))
}

// whyNot says why hosts do not take a sandbox, of the first few of them.
func (c *coordinator) whyNot(b *protocol.Sandbox) string {
	_, refusals := place(b, c.hosts.list(), c.images.list())
	why := ""
	for i, r := range refusals {
		if i == mostHosts {
			return fmt.Sprintf("%s; and %d more", why, len(refusals)-mostHosts)
		}
		if r.Reason != "" {
			why += fmt.Sprintf("; %s: %s", r.Worker, r.Reason)
		}
	}
	return why
}

// watchExecs ends execs whose end can no longer be learnt in time: their own timeout is over, and
// so is a margin for their worker to say so, in which it could; or they never started, and their host is lost.
func (c *coordinator) watchExecs(ctx context.Context, k key, b *protocol.Sandbox, host *protocol.Host, now time.Time) error {
	var overdue, unstarted []string
	reason, lost := protocol.ReasonInterrupted, host == nil || host.State == protocol.HostLost
	if lost {
		reason = protocol.ReasonHostLost
	}
	j := c.projection.journal(k)
	j.View(func(s *protocol.State, _ uint64) {
		for _, x := range s.Active() {
			if x.State == protocol.ExecStateAccepted && c.unstarted.since(k, x.ID, now) > x.Spec.StartWithin() {
				unstarted = append(unstarted, x.ID)
				continue
			}
			late := x.State == protocol.ExecStateRunning && x.Spec.Timeout > 0 && now.Sub(x.StartedAt) > x.Spec.Timeout.Std()+x.Spec.Grace.Std()
			switch {
			case late && c.overdue.since(k, x.ID, now) > c.cfg.Timing.Overdue,
				x.State == protocol.ExecStateAccepted && lost && now.Sub(x.AcceptedAt) > c.cfg.Timing.Overdue:
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
			"worker %s has not said for too long what became of the exec; its exit code is not known", b.Worker))
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

// tellChanged tells each worker that has just registered about everything it owns.
func (c *coordinator) tellChanged() {
	for _, worker := range c.hosts.takeChanged() {
		for _, b := range c.projection.all() {
			if c.hosts.workerOf(b.HostID, b.Worker) != worker || b.State == protocol.StateDeleted {
				continue
			}
			if err := c.conn.TellAbout(worker, b.Tenant, b.ID); err != nil {
				c.log.Warn("a worker is not told, and will be later", "worker", worker, "error", err)
			}
		}
	}
}

// purge takes away what is kept of a sandbox that was deleted long ago.
func (c *coordinator) purge(ctx context.Context, k key, b *protocol.Sandbox) error {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if err := c.conn.PurgeHistory(ctx, k.tenant, k.id); err != nil {
		return err
	}
	c.projection.forget(k, b)
	return nil
}

// watchReservations ends ids that were reserved and never came to a first event: whoever reserved
// them is gone, and so is the request. It scans the registry, which forgets nothing.
func (c *coordinator) watchReservations(ctx context.Context) error {
	var mu sync.Mutex
	open := map[key]reserved{}
	go func() {
		_ = c.again(ctx, "follow the registry", func() error {
			return c.conn.FollowReservations(ctx, func(tenant, sandbox string, r *protocol.Reservation) {
				mu.Lock()
				defer mu.Unlock()
				open[key{tenant, sandbox}] = reserved{request: r.Request, seen: time.Now()}
			})
		}) // returns when ctx ends
	}()
	ticker := time.NewTicker(max(c.cfg.Timing.Abandon/4, c.cfg.Timing.Scan))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		mu.Lock()
		for k, r := range open {
			if c.projection.get(k) != nil || time.Since(r.seen) > c.cfg.Timing.Abandon && c.checkReservation(ctx, k, r) {
				delete(open, k)
			}
		}
		mu.Unlock()
	}
}

// reserved is a reservation whose sandbox was not seen yet.
type reserved struct {
	request string
	seen    time.Time
}

// checkReservation reports whether an id has a history, or has been given an end now. It gets none while
// its request is in the queue: that waits for its turn, or for the log.
func (c *coordinator) checkReservation(ctx context.Context, k key, r reserved) bool {
	_, err := c.projection.find(ctx, k, 0)
	if protocol.CodeOf(err) == protocol.NotFound {
		queued, queueErr := c.conn.RequestQueued(ctx, k.tenant, protocol.VerbCreate, k.id)
		if queued || queueErr != nil {
			return false
		}
		err = c.abandon(ctx, k, r.request, protocol.Errorf(protocol.Internal, protocol.ReasonAbandoned,
			"the id was reserved, and the request was not carried out"))
	}
	if err != nil {
		c.log.Warn("a reservation is looked at again", "sandbox", k.id, "error", err)
	}
	return err == nil
}
