package coordinator

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// notifier notifies workers again about sandboxes that wait for their workers. [projection.appended] sends a
// notification after each append, but that notification may be lost.
type notifier struct{ *leader }

// The notifier sends at most notifiedPerRound notifications per notifyRound. Each notification makes a worker read a
// history. Without the limit, a thousand workers that start at once would keep NATS too busy for anything else.
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
			for _, k := range n.projection.work.hosts.on(host) {
				due = append(due, notification{worker, k})
			}
		}
		due = n.send(ctx, due)
	})
}

// send sends notifications in rounds. It stops after about one scan, because other workers may have registered in the
// meantime. It returns the notifications that were not sent.
func (n *notifier) send(ctx context.Context, due []notification) []notification {
	for began := time.Now(); len(due) > 0 && time.Since(began) < max(n.cfg.Timing.Scan, notifyRound); {
		size := min(notifiedPerRound, len(due))
		for _, d := range due[:size] {
			if n.projection.read.get(d.key) == nil {
				continue
			}
			if err := n.conn.NotifyWithoutBatch(d.worker, d.key.Tenant, d.key.ID); err != nil {
				n.log.Warn("could not notify a worker; it will be notified again if the sandbox has pending work",
					"worker", d.worker, "sandbox", d.key.ID, "error", err)
			}
		}
		if due = due[size:]; len(due) > 0 && (!backoff.Sleep(ctx, notifyRound) || n.lease.Check() != nil) {
			break
		}
	}
	return due
}

// notified describes the last notification that a worker was sent about a pending sandbox.
type notified struct {
	sequence uint64 // the sandbox's sequence at that time
	at       time.Time
	pause    backoff.Backoff
	next     time.Duration // how long to wait before the next notification
}

// maxRepeatPauses limits the pause between notifications about one sandbox, as a multiple of the first pause. The pause
// grows because pending work, such as an exec, may take long.
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
			if last == nil || last.sequence != b.Sequence { // a new append has just sent a notification
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
