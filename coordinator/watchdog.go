package coordinator

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
)

// watchdog enforces deadlines on everything that has not ended, even if its worker does nothing. The parts of the
// watchdog run concurrently, so that no deadline waits for hosts or for purges.
//
//	watchdog.go    deadlines of sandboxes
//	due.go         the decisions that deadlines call for
//	watchexecs.go  execs that never start or never end
//	watchhosts.go  silent hosts, and what operators want of hosts
//	purge.go       histories of sandboxes deleted long ago
type watchdog struct {
	*leader
	unstarted *execTimers // execs that are accepted and not started
	overdue   *execTimers // execs that run beyond their own timeout
	moves     moves
	recent    recentHosts
	tried     map[string]time.Time // by worker: the last attempt to take a silent host's lock
	lostSince map[string]time.Time // by host id: when this leader first saw that the host was lost
}

func newWatchdog(l *leader) *watchdog {
	return &watchdog{
		leader: l, unstarted: newExecTimers(), overdue: newExecTimers(),
		tried: map[string]time.Time{}, lostSince: map[string]time.Time{},
	}
}

func (w *watchdog) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.watchDeadlines(ctx) })
	group.Go(func() error { return w.watchExecs(ctx) })
	group.Go(func() error { return w.watchHosts(ctx) })
	group.Go(func() error { return w.purgeDeleted(ctx) })
	return group.Wait()
}

// deadlinesAtOnce is how many sandboxes the watchdog handles concurrently.
const deadlinesAtOnce = 64

// watchDeadlines inspects each living sandbox when its next deadline has come.
func (w *watchdog) watchDeadlines(ctx context.Context) error {
	slots := make(chan struct{}, deadlinesAtOnce)
	var group sync.WaitGroup
	defer group.Wait()
	for {
		now := w.conn.Now()
		keys, next := w.projection.work.takeDue(now, deadlinesAtOnce)
		for i, k := range keys {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				w.projection.work.inspectBy(now, keys[i:]...) // not handled: still due when this coordinator leads again
				return ctx.Err()
			}
			group.Go(func() {
				defer func() { <-slots }()
				w.meetDeadline(ctx, k)
			})
		}
		if len(keys) == deadlinesAtOnce {
			continue
		}
		pause := w.cfg.Timing.Scan // never longer, since an operator may set the store's clock
		if !next.IsZero() {
			pause = min(pause, max(next.Sub(w.conn.Now()), time.Millisecond))
		}
		if !w.projection.work.deadlineWake.WaitFor(ctx, pause) {
			return ctx.Err()
		}
	}
}

// meetDeadline makes the decision that the deadlines of one sandbox require, and sets when to inspect the sandbox next.
func (w *watchdog) meetDeadline(ctx context.Context, k key) {
	b := w.projection.read.get(k)
	if b == nil {
		return
	}
	err := w.lease.Check()
	if err == nil {
		err = w.decideDue(ctx, b)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Warn("the watchdog could not act on a deadline of a sandbox; trying again", "sandbox", b.ID, "error", err)
	}
	if b = w.projection.read.get(k); b == nil {
		return
	}
	// If the deadline is still due, inspect the sandbox again at the next scan.
	at, now := w.projection.nextDeadline(b), w.conn.Now()
	if err != nil || !at.IsZero() && !at.After(now) {
		at = now.Add(w.cfg.Timing.Scan)
	}
	w.projection.work.inspectBy(at, k)
}

// decideDue appends the events that the deadlines of one sandbox require. It decides on the newest state of the
// sandbox.
func (w *watchdog) decideDue(ctx context.Context, b *protocol.Sandbox) error {
	if w.due(b, w.hosts.byID(b.HostID), w.conn.Now()) == nil {
		return nil
	}
	_, err := w.projection.journal(key{Tenant: b.Tenant, ID: b.ID}).Do(ctx,
		w.whileLeading(func(s *protocol.State) ([]protocol.Event, error) {
			// Decide again on this state: the sandbox may have changed since the check above.
			if decide := w.due(&s.Sandbox, w.hosts.byID(s.Sandbox.HostID), w.conn.Now()); decide != nil {
				return decide(s)
			}
			return nil, nil
		}))
	return err
}
