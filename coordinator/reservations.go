package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// reservations are ids that were taken and have not come to a first event yet, as far as is known.
type reservations struct {
	mu      sync.Mutex
	open    map[key]reserved
	handled uint64 // the registry was followed so far
	current bool   // it was followed up to its end
}

// reserved is a reservation whose sandbox was not seen yet.
type reserved struct {
	request  string
	seen     time.Time
	revision uint64
}

// covered is the revision up to which every id has a history; 0: not known.
func (r *reservations) covered() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.current {
		return 0
	}
	covered := r.handled
	for _, o := range r.open {
		covered = min(covered, o.revision-1)
	}
	return covered
}

// allReserved says up to which revision of the registry every id has a history, in the log as it was when the projection
// was restored so many times.
type allReserved struct {
	revision uint64
	restored int
}

// watchReservations ends ids that were reserved and never came to a first event: their requests are gone. It reads
// only what was reserved since a leader knew last that all before it have a history, which stands in the checkpoint. Where
// the log was set back, ids have lost theirs, and it starts again from the beginning.
func (c *coordinator) watchReservations(ctx context.Context) error {
	defer c.reserved.Store(nil)
	for {
		restored := c.projection.timesRestored()
		if c.projection.isSettled() {
			c.watchReservationsOf(ctx, restored)
		}
		if !sleep(ctx, c.cfg.Timing.Scan) {
			return ctx.Err()
		}
	}
}

// watchReservationsOf does so until the projection is restored again, or ctx ends.
func (c *coordinator) watchReservationsOf(ctx context.Context, restored int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &reservations{open: map[key]reserved{}}
	go func() {
		_ = c.again(ctx, "follow the registry", func() error { return c.followReservations(ctx, r) }) // returns when ctx ends
	}()
	ticker := time.NewTicker(max(c.cfg.Timing.Abandon/4, c.cfg.Timing.Scan))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if c.projection.timesRestored() != restored {
			return
		}
		r.mu.Lock()
		var due []key
		for k, o := range r.open {
			if c.projection.knows(k) {
				delete(r.open, k)
			} else if time.Since(o.seen) > c.cfg.Timing.Abandon {
				due = append(due, k)
			}
		}
		r.mu.Unlock()
		for _, k := range due {
			r.mu.Lock()
			o, open := r.open[k]
			r.mu.Unlock()
			if open && c.checkReservation(ctx, k, o) {
				r.mu.Lock()
				delete(r.open, k)
				r.mu.Unlock()
			}
		}
		c.reserved.Store(&allReserved{r.covered(), restored})
	}
}

// followReservations notes every reservation that was made after those of which the checkpoint says that they have a
// history.
func (c *coordinator) followReservations(ctx context.Context, r *reservations) error {
	r.mu.Lock()
	after := r.handled
	r.mu.Unlock()
	if after == 0 {
		_, covered, err := c.conn.Checkpoint(ctx)
		if err != nil {
			return err
		}
		after = covered
	}
	return c.conn.FollowReservations(ctx, after, func(tenant, sandbox string, v *protocol.Reservation, revision uint64) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.handled = revision
		if k := (key{Tenant: tenant, ID: sandbox}); !c.projection.knows(k) {
			r.open[k] = reserved{request: v.Request, seen: time.Now(), revision: revision}
		}
	}, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.handled, r.current = max(r.handled, after), true
	})
}

// checkReservation reports whether an id has a history, or has been given an end now. It gets none while
// its request is in the queue: that waits for its turn, or for the log.
func (c *coordinator) checkReservation(ctx context.Context, k key, r reserved) bool {
	_, err := c.projection.find(ctx, k, 0)
	if protocol.CodeOf(err) == protocol.NotFound {
		queued, queueErr := c.conn.RequestQueued(ctx, k.Tenant, protocol.VerbCreate, k.ID)
		if queued || queueErr != nil {
			return false
		}
		err = c.abandon(ctx, k, r.request, protocol.Errorf(protocol.Internal, protocol.ReasonAbandoned,
			"the id was reserved, and the request was not carried out"))
	}
	if err != nil {
		c.log.Warn("a reservation is looked at again", "sandbox", k.ID, "error", err)
	}
	return err == nil
}
