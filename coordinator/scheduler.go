package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// assignsAtOnce is how many assignments are in flight at a time.
const assignsAtOnce = 64

// scheduler places pending sandboxes on hosts. Its passes run one after another; the assignments that they choose are
// appended concurrently.
type scheduler struct {
	*leader
	index   *placement.Index
	version uint64                       // of the table of hosts in the index
	updated time.Time                    // when the index got that table
	kinds   map[*protocol.Sandbox]string // of the sandboxes that wait, see [placement.KindOf]
	never   map[string]*protocol.Error   // by kind: why no host ever takes it, nil where one may
	slots   chan struct{}
	group   sync.WaitGroup
}

func newScheduler(l *leader) *scheduler {
	l.images.markAllChanged()
	return &scheduler{
		leader: l, index: placement.NewIndex(), slots: make(chan struct{}, assignsAtOnce),
		kinds: map[*protocol.Sandbox]string{}, never: map[string]*protocol.Error{},
	}
}

// run makes a pass each time something changes, and once per scan.
func (s *scheduler) run(ctx context.Context) error {
	defer s.group.Wait()
	s.awaitLog(ctx)
	ticker := time.NewTicker(s.cfg.Timing.Scan)
	defer ticker.Stop()
	for {
		if err := s.lease.Check(); err == nil {
			s.pass(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.projection.work.schedulerWake:
		case <-ticker.C:
		}
	}
}

// catchUpWithin bounds how long a new leader waits for the log: its newest message may have been purged.
const catchUpWithin = time.Second

// awaitLog waits briefly until the decisions of the previous leader are folded here, so that its assignments count on
// their hosts.
func (s *scheduler) awaitLog(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, catchUpWithin)
	defer cancel()
	last, err := s.conn.LastRecord(ctx)
	for err == nil && s.projection.followedTo() < last && backoff.Sleep(ctx, 5*time.Millisecond) {
	}
}

// waitingForHost lists the sandboxes that wait for a host, the oldest first: those without one, and those that were
// not ready when their host was lost.
func (c *coordinator) waitingForHost(hosts []*protocol.Host) []*protocol.Sandbox {
	var lost []string
	for _, h := range hosts {
		if h.State == protocol.HostLost {
			lost = append(lost, h.HostID)
		}
	}
	return c.projection.work.waitingForHost(append(lost, c.hosts.allForgotten()...), true)
}

// updateIndex applies to the index what changed on the hosts.
func (s *scheduler) updateIndex() {
	for worker, reported := range s.images.takeChanged() {
		s.index.SetImages(worker, reported)
	}
	// The table is also read once per scan: a host that falls silent reports no change.
	if s.hosts.changedSince(s.version) || time.Since(s.updated) > s.cfg.Timing.Scan {
		s.projection.work.takeChangedUsages() // the rows include them
		rows, version := s.hosts.rows()
		if version != s.version {
			clear(s.never)
		}
		s.version, s.updated = version, time.Now()
		s.index.SetHosts(rows)
		return
	}
	for host, u := range s.projection.work.takeChangedUsages() {
		s.index.SetUsage(host, u)
	}
}

// pass places the waiting sandboxes, the oldest first, while there is room. It costs by the sandboxes that wait and
// the hosts that changed.
func (s *scheduler) pass(ctx context.Context) {
	s.updateIndex()
	queue := s.projection.work.waitingForHost(append(s.index.Lost(), s.hosts.allForgotten()...), false)
	s.nameKinds(queue)
	full, missingImage := map[string]bool{}, map[string]*protocol.Error{} // by kind, during this pass
	for _, b := range queue {
		kind := s.kinds[b]
		if !full[kind] {
			placed, ok := s.place(ctx, b, kind)
			if !ok {
				return
			}
			if placed {
				continue
			}
			full[kind] = !b.Resuming && len(b.Refusals) == 0 // room rarely appears before the next pass
		}
		why := s.whyNever(b, kind, missingImage)
		if why != nil && s.projection.work.launch(b, "", placement.Usage{}) {
			s.slots <- struct{}{}
			s.append(ctx, b, func(state *protocol.State) ([]protocol.Event, error) { return decideFail(state, why) })
		}
	}
}

// nameKinds names the kinds of the waiting sandboxes, and forgets those of others.
func (s *scheduler) nameKinds(queue []*protocol.Sandbox) {
	kinds := make(map[*protocol.Sandbox]string, len(queue))
	for _, b := range queue {
		kind := s.kinds[b]
		if kind == "" {
			kind = placement.KindOf(b)
		}
		kinds[b] = kind
	}
	s.kinds = kinds
}

// place chooses a host for a sandbox and starts the assignment. ok is false where the pass must end.
func (s *scheduler) place(ctx context.Context, b *protocol.Sandbox, kind string) (placed, ok bool) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return false, false
	}
	if s.lease.Check() != nil {
		<-s.slots
		return false, false
	}
	s.updateIndex()
	chosen := s.index.Place(placement.WithoutExpiredRefusals(b, s.conn.Now()), kind)
	if chosen == nil {
		<-s.slots
		return false, true
	}
	s.assign(ctx, b, chosen)
	return true, true
}

// imageReportDelay is how long it takes until the coordinators know of an image that a host has got.
const imageReportDelay = 2 * time.Second

// whyNever returns why waiting does not help a sandbox, nil where it may.
func (s *scheduler) whyNever(
	b *protocol.Sandbox, kind string, missingImage map[string]*protocol.Error,
) *protocol.Error {
	why, known := s.never[kind]
	if !known {
		why = placement.Impossible(b, s.index.Hosts())
		s.never[kind] = why
	}
	waited := s.conn.Now().Sub(b.StateChangedAt)
	if why != nil || waited <= min(imageReportDelay, s.cfg.Timing.Image) {
		return why
	}
	if why, known = missingImage[kind]; !known {
		why = placement.ImageUnavailable(b, s.index.Hosts(), s.index.Images(), s.images.importing())
		missingImage[kind] = why
	}
	if why != nil && why.Reason == protocol.ReasonImageNotFound && waited <= s.cfg.Timing.Image {
		return nil // somebody may bring the image by hand
	}
	return why
}

// assign assigns a sandbox to a host. The assignment counts on the host at once, for the next choice too, and stops
// counting if it does not come into the log.
func (s *scheduler) assign(ctx context.Context, b *protocol.Sandbox, chosen *protocol.Host) {
	resolved, err := placement.SpecOn(b, chosen)
	if err != nil || !s.projection.work.launch(b, chosen.HostID, placement.UsageOf(resolved)) {
		<-s.slots
		return
	}
	s.append(ctx, b, func(state *protocol.State) ([]protocol.Event, error) {
		return decideAssign(state, b.Generation, chosen.Worker, chosen.HostID, resolved)
	})
}

// append appends a decision about a waiting sandbox in the background, and then frees the slot that the caller took.
// The lease is checked again when the decision's turn in the log has come.
func (s *scheduler) append(
	ctx context.Context, b *protocol.Sandbox, decide func(*protocol.State) ([]protocol.Event, error),
) {
	k := key{Tenant: b.Tenant, ID: b.ID}
	s.group.Go(func() {
		defer func() { <-s.slots }()
		defer s.projection.work.abort(k)
		s.cfg.Probe("assign-before-append")
		_, err := s.projection.journal(k).Do(ctx, s.whileLeading(decide))
		if err != nil && ctx.Err() == nil {
			s.log.Warn("could not place a sandbox; it is placed later", "sandbox", b.ID, "error", err)
		}
	})
}

// whileLeading makes a decision that is taken only while the lease is held.
func (l *leader) whileLeading(decide func(*protocol.State) ([]protocol.Event, error)) jetstream.Decide {
	return func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		if err := l.lease.Check(); err != nil {
			return nil, err
		}
		return decide(s)
	}
}
