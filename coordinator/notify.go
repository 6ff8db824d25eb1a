package coordinator

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// notifier notifies workers again about sandboxes that are pending on their side. The first notification follows each
// append, see [projection.appended]; it may be lost.
type notifier struct{ *leader }

// At most notifiedPerRound sandboxes are notified per notifyRound. A notification makes a worker read a history; a
// thousand workers that start at once would leave no room for anything else.
const (
	notifyRound      = 20 * time.Millisecond
	notifiedPerRound = 100
)

// notification tells a worker that a sandbox has news.
type notification struct {
	worker string
	key    key
}

func (n *notifier) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.notifyRegistered(ctx) })
	group.Go(func() error { return n.notifyPending(ctx) })
	return group.Wait()
}

// notifyRegistered notifies each worker that has just registered about everything on its host.
func (n *notifier) notifyRegistered(ctx context.Context) error {
	var due []notification
	return n.eachScan(ctx, func() {
		for worker, host := range n.hosts.takeChanged() {
			for _, k := range n.projection.work.on(host) {
				due = append(due, notification{worker, k})
			}
		}
		due = n.send(ctx, due)
	})
}

// send sends notifications in rounds, for about one scan, so that workers that register meanwhile do not wait longer.
// It returns those that are left.
func (n *notifier) send(ctx context.Context, due []notification) []notification {
	for began := time.Now(); len(due) > 0 && time.Since(began) < max(n.cfg.Timing.Scan, notifyRound); {
		size := min(notifiedPerRound, len(due))
		for _, d := range due[:size] {
			if n.projection.read.get(d.key) == nil {
				continue
			}
			if err := n.conn.NotifyWithoutBatch(d.worker, d.key.Tenant, d.key.ID); err != nil {
				n.log.Warn("could not notify a worker; it is notified again later", "worker", d.worker, "error", err)
			}
		}
		if due = due[size:]; len(due) > 0 && (!backoff.Sleep(ctx, notifyRound) || n.lease.Check() != nil) {
			break
		}
	}
	return due
}

// notified is the last notification of a worker about a pending sandbox.
type notified struct {
	sequence uint64 // of the sandbox
	at       time.Time
	pause    backoff.Backoff
	next     time.Duration // before the next notification
}

// maxRepeatPauses is how many times longer than the first the pause between notifications becomes: what is pending may
// take long, as an exec does.
const maxRepeatPauses = 12

// notifyPending notifies workers again about sandboxes that stay pending.
func (n *notifier) notifyPending(ctx context.Context) error {
	known, first := map[key]*notified{}, n.cfg.Timing.Retell
	var due []notification
	return n.eachScan(ctx, func() {
		now, workers := time.Now(), n.hosts.ready()
		seen := make(map[key]*notified, len(known))
		ready := func(hostID string) bool { return workers[hostID] != "" }
		n.projection.work.eachPending(ready, func(k key, b *protocol.Sandbox) {
			last := known[k]
			if last == nil || last.sequence != b.Sequence { // the append has just notified it
				last = &notified{sequence: b.Sequence, at: now, pause: backoff.New(first, maxRepeatPauses*first)}
				last.next = last.pause.Next()
			}
			if seen[k] = last; now.Sub(last.at) > last.next {
				due = append(due, notification{workers[b.HostID], k})
				last.at, last.next = now, last.pause.Next()
			}
		})
		known = seen
		due = n.send(ctx, due)
	})
}
