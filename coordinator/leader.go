package coordinator

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
)

// elected says whether this coordinator holds the scheduler's lock.
type elected struct{ atomic.Bool }

// leader is a coordinator while it holds the scheduler's lock. The parts of a coordinator that run only while it leads
// embed leader.
type leader struct {
	*coordinator
	lease *jetstream.Lease
}

// campaignPause is the time between two attempts to take the scheduler's lock. After a leader dies, the fleet has no
// scheduler until the leader's lease ends, and then for at most campaignPause.
const campaignPause = 300 * time.Millisecond

// campaign tries to take the scheduler's lock until ctx ends, and leads whenever it holds the lock.
func (c *coordinator) campaign(ctx context.Context) error {
	holder := jetstream.Holder{Name: c.cfg.Name, Instance: ulid.Make().String()}
	for {
		lease, err := c.conn.AcquireScheduler(ctx, holder)
		if err == nil {
			c.log.Info("this coordinator is now the leader and places sandboxes", "token", lease.Token())
			(&leader{c, lease}).lead(ctx)
		} else if held := (*jetstream.HeldError)(nil); !errors.As(err, &held) && ctx.Err() == nil {
			c.log.Warn("could not take the scheduler's lock; trying again", "error", err)
		}
		if !backoff.Sleep(ctx, campaignPause) {
			return ctx.Err()
		}
	}
}

// lead runs everything that only the leader does, until the lease is lost or ctx ends.
func (l *leader) lead(ctx context.Context) {
	leading, stop := context.WithCancel(ctx)
	defer stop()
	group, leading := errgroup.WithContext(leading)
	noteLeading(l.hosts, true)
	defer noteLeading(l.hosts, false)
	for _, run := range []func(context.Context) error{
		l.lease.Run, newScheduler(l).run, newWatchdog(l).run, (&notifier{l}).run,
		newReservationWatch(l.coordinator).run, newSnapshotWriter(l).run, newCompactor(l).run,
		l.boundOutput, l.keepBlobs, l.removeImageFiles, l.removeUploadParts, l.admit,
	} {
		group.Go(func() error { return run(leading) })
	}
	l.elected.Store(true)
	l.condition.change(func(s *condition) { s.leads = true })
	err := group.Wait()
	l.elected.Store(false)
	l.condition.change(func(s *condition) { s.leads = false })
	if ctx.Err() == nil {
		l.log.Warn("this coordinator is no longer the leader", "error", err)
		return
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := l.lease.Release(release); err != nil {
		l.log.Warn("could not release the scheduler's lock; the lock expires by itself", "error", err)
	}
}

// awaitLog waits until this coordinator has folded each batch that the log had at the call, however long that takes. A
// new leader then counts what the previous leader and other coordinators have appended. Error: that of ctx.
func (l *leader) awaitLog(ctx context.Context) error {
	last, known := uint64(0), false
	for pause := backoff.New(5*time.Millisecond, retryPause); ; {
		var err error
		if !known {
			last, err = l.conn.LastRecord(ctx)
			known = err == nil
		}
		if reached, settled := l.projection.reachedRecord(); known && settled {
			if reached >= last {
				return nil
			}
			// The newest messages never arrive if they were purged, or if they are no batches.
			var more bool
			if more, err = l.conn.BatchBetween(ctx, reached, last); err == nil && !more {
				return nil
			}
		}
		if err != nil && ctx.Err() == nil {
			l.log.Warn("could not read the end of the log; placements and quota claims may have to wait", "error", err)
		}
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// eachScan calls f once per scan while the lease is held, until ctx ends.
func (l *leader) eachScan(ctx context.Context, f func()) error {
	ticker := time.NewTicker(l.cfg.Timing.Scan)
	defer ticker.Stop()
	for {
		if l.lease.Check() == nil {
			f()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
