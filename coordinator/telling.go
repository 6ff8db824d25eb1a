package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Workers are told at most tellARound sandboxes each tellRound: what is told makes a worker read a history, and with
// a thousand workers that begin at once there would be no room for anything else.
const (
	tellRound  = 20 * time.Millisecond
	tellARound = 100
)

// tellChanged tells each worker that has just registered about everything that is on its host.
func (c *coordinator) tellChanged(ctx context.Context, lease *jetstream.Lease) error {
	var due []told
	return c.each(ctx, lease, func() {
		for worker, host := range c.hosts.takeChanged() {
			for _, k := range c.projection.on(host) {
				due = append(due, told{worker, k})
			}
		}
		due = c.tellSome(ctx, lease, due)
	})
}

// told is something that a worker is to be told about.
type told struct {
	worker string
	key    key
}

// tellSome tells workers, in rounds, for about as long as a scan, so that those that register meanwhile wait no
// longer than that. It returns what is left.
func (c *coordinator) tellSome(ctx context.Context, lease *jetstream.Lease, due []told) []told {
	for began := time.Now(); len(due) > 0 && time.Since(began) < max(c.cfg.Timing.Scan, tellRound); {
		n := min(tellARound, len(due))
		for _, t := range due[:n] {
			if c.projection.get(t.key) == nil {
				continue
			}
			if err := c.conn.TellAbout(t.worker, t.key.Tenant, t.key.ID); err != nil {
				c.log.Warn("a worker is not told, and will be later", "worker", t.worker, "error", err)
			}
		}
		if due = due[n:]; len(due) > 0 && (!sleep(ctx, tellRound) || lease.Check() != nil) {
			break
		}
	}
	return due
}

// owing is what a worker was told that it owes.
type owing struct {
	sequence uint64
	at       time.Time
	pause    time.Duration // before it is told again
}

// mostRetells is by how many times the pause before a worker is told again grows, where nothing comes of it: what
// it owes may take long, as an exec does.
const mostRetells = 12

// tellOwing tells workers again what they owe.
func (c *coordinator) tellOwing(ctx context.Context, lease *jetstream.Lease) error {
	known, retell := map[key]*owing{}, c.cfg.Timing.Retell
	var due []told
	return c.each(ctx, lease, func() {
		now, hosts := time.Now(), c.hosts.ready()
		seen := make(map[key]*owing, len(known))
		c.projection.owing(func(id string) bool { return hosts[id] != "" }, func(k key, b *protocol.Sandbox) {
			o := known[k]
			if o == nil || o.sequence != b.Sequence { // what was just decided is told already
				o = &owing{sequence: b.Sequence, at: now, pause: retell}
			}
			if seen[k] = o; now.Sub(o.at) > o.pause {
				due = append(due, told{hosts[b.HostID], k})
				o.at, o.pause = now, min(2*o.pause, mostRetells*retell)
			}
		})
		known = seen
		due = c.tellSome(ctx, lease, due)
	})
}
