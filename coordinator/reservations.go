package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// reservationWatch ends ids that were reserved but never got a first event, because their requests are gone. Every id
// that the checkpoint covers has a history, so the watch reads only later reservations. If the log was rewound, ids may
// have lost their histories, so the watch starts again from the first reservation.
type reservationWatch struct {
	*coordinator

	mu      sync.Mutex
	open    map[key]openReservation
	handled uint64 // the revision up to which the registry was followed
	current bool   // the registry was followed to its end
}

// openReservation is a reservation without a known history.
type openReservation struct {
	request  string
	seen     time.Time
	revision uint64
}

// reservedThrough says that every id up to a revision of the registry has a history. It is valid only until the
// projection is restored again, because the log may have been rewound then.
type reservedThrough struct {
	revision uint64
	restored int
}

func newReservationWatch(c *coordinator) *reservationWatch { return &reservationWatch{coordinator: c} }

func (w *reservationWatch) run(ctx context.Context) error {
	defer w.reserved.Store(nil)
	for {
		if restored, settled := w.projection.generation(); settled {
			w.watch(ctx, restored)
		}
		if !backoff.Sleep(ctx, w.cfg.Timing.Scan) {
			return ctx.Err()
		}
	}
}

// watch watches reservations until the projection is restored again, or ctx ends.
func (w *reservationWatch) watch(ctx context.Context, restored int) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	w.open, w.handled, w.current = map[key]openReservation{}, 0, false
	following.Go(func() {
		_ = w.retry(ctx, "follow the registry", func() error { return w.follow(ctx) }) // fails only when ctx ends
	})
	ticker := time.NewTicker(max(w.cfg.Timing.Abandon/4, w.cfg.Timing.Scan))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if now, _ := w.projection.generation(); now != restored {
			return
		}
		for k, r := range w.expired() {
			if w.settle(ctx, k, r) {
				w.mu.Lock()
				delete(w.open, k)
				w.mu.Unlock()
			}
		}
		w.reserved.Store(&reservedThrough{w.covered(), restored})
	}
}

// expired returns the reservations that have been open for too long, and drops the reservations of sandboxes that have
// a history by now.
func (w *reservationWatch) expired() map[key]openReservation {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := map[key]openReservation{}
	for k, r := range w.open {
		if w.projection.read.knows(k) {
			delete(w.open, k)
		} else if time.Since(r.seen) > w.cfg.Timing.Abandon {
			due[k] = r
		}
	}
	return due
}

// covered is the revision up to which every id has a history; 0: unknown.
func (w *reservationWatch) covered() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.current {
		return 0
	}
	covered := w.handled
	for _, r := range w.open {
		covered = min(covered, r.revision-1)
	}
	return covered
}

// follow records every reservation after the last one that the checkpoint covers.
func (w *reservationWatch) follow(ctx context.Context) error {
	w.mu.Lock()
	after := w.handled
	w.mu.Unlock()
	if after == 0 {
		_, covered, err := w.conn.Checkpoint(ctx)
		if err != nil {
			return err
		}
		after = covered
	}
	record := func(tenant, sandbox string, v *protocol.Reservation, revision uint64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.handled = revision
		if k := (key{Tenant: tenant, ID: sandbox}); !w.projection.read.knows(k) {
			w.open[k] = openReservation{request: v.Request, seen: time.Now(), revision: revision}
		}
	}
	return w.conn.FollowReservations(ctx, after, record, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.handled, w.current = max(w.handled, after), true
	})
}

// settle ends an id that has no history, unless its create is still in the queue and may be decided later. It reports
// whether the id has a history now.
func (w *reservationWatch) settle(ctx context.Context, k key, r openReservation) bool {
	_, err := w.projection.find(ctx, k, 0)
	if protocol.CodeOf(err) == protocol.NotFound {
		queued, queueErr := w.conn.RequestQueued(ctx, k.Tenant, protocol.VerbCreate, k.ID)
		if queued || queueErr != nil {
			return false
		}
		err = w.abandon(ctx, k, r.request, protocol.Errorf(protocol.Internal, protocol.ReasonAbandoned,
			"the id was reserved, but the request was not carried out"))
	}
	if err != nil {
		w.log.Warn("could not check a reservation; trying again later", "sandbox", k.ID, "error", err)
	}
	return err == nil
}
