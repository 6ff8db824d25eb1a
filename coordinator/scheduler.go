package coordinator

import (
	"context"
	"sync"
	"time"

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
	version uint64                       // version of the table of hosts in the index
	updated time.Time                    // when the index got the table
	kinds   map[*protocol.Sandbox]string // kinds of the waiting sandboxes, see [placement.KindOf]
	never   map[string]*protocol.Error   // why no host could ever take a sandbox, by kind; nil if a host could
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
	if err := s.awaitLog(ctx); err != nil {
		return err
	}
	ticker := time.NewTicker(s.cfg.Timing.Scan)
	defer ticker.Stop()
	for {
		if s.lease.Check() == nil && s.projection.isCurrent() {
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

// waitingForHost lists the sandboxes that wait for a host, the oldest first: sandboxes without a host, and sandboxes
// that were not ready when their host was lost.
func (c *coordinator) waitingForHost(hosts []*protocol.Host) []*protocol.Sandbox {
	var lost []string
	for _, h := range hosts {
		if h.State == protocol.HostLost {
			lost = append(lost, h.HostID)
		}
	}
	return c.projection.work.waitingForHost(append(lost, c.hosts.allForgotten()...), true)
}

// updateIndex applies the changes of hosts, of their images and of their usage to the index.
func (s *scheduler) updateIndex() {
	for worker, reported := range s.images.takeChanged() {
		s.index.SetImages(worker, reported)
	}
	// Also read the table once per scan, because a host that falls silent reports no change.
	if s.hosts.changedSince(s.version) || time.Since(s.updated) > s.cfg.Timing.Scan {
		s.projection.work.hosts.takeChanged() // discarded: the rows include these usages
		rows, version := s.hosts.rows()
		if version != s.version {
			clear(s.never)
		}
		s.version, s.updated = version, time.Now()
		s.index.SetHosts(rows)
		return
	}
	for host, u := range s.projection.work.hosts.takeChanged() {
		s.index.SetUsage(host, u)
	}
}

// pass places the waiting sandboxes, the oldest first, while there is room. Its cost is proportional to the number of
// waiting sandboxes and changed hosts.
func (s *scheduler) pass(ctx context.Context) {
	s.updateIndex()
	queue := s.projection.work.waitingForHost(append(s.index.Lost(), s.hosts.allForgotten()...), false)
	s.nameKinds(queue)
	full, missingImage := map[string]bool{}, map[string]*protocol.Error{} // by kind, during this pass
	held := map[tenantKind]bool{}                                         // kinds that the quota has no room for
	for _, b := range queue {
		kind := s.kinds[b]
		if held[tenantKind{b.Tenant, kind}] && !b.Resuming {
			continue
		}
		if !full[kind] {
			p, ok := s.place(ctx, b, kind)
			if !ok {
				return
			}
			if p != noHost {
				held[tenantKind{b.Tenant, kind}] = p == overTheQuota && !b.Resuming
				continue
			}
			full[kind] = !b.Resuming && len(b.Refusals) == 0 // room rarely appears before the next pass
		}
		why := s.whyNever(b, kind, missingImage)
		if why == nil {
			continue
		}
		if launched, _ := s.projection.work.launch(b, "", placement.Usage{}, protocol.Quota{}); launched {
			s.slots <- struct{}{}
			s.append(ctx, b, func(state *protocol.State) ([]protocol.Event, error) { return decideFail(state, why) })
		}
	}
}

// nameKinds computes the kinds of the waiting sandboxes, and forgets the kinds of all others.
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

// tenantKind is a kind of sandbox of one tenant.
type tenantKind struct{ tenant, kind string }

// placed is the outcome of the choice of a host.
type placed int

const (
	noHost placed = iota
	onHost
	overTheQuota // a host would take the sandbox, but its tenant's quota has no room
)

// place chooses a host for a sandbox and starts the assignment. ok is false if the pass must end.
func (s *scheduler) place(ctx context.Context, b *protocol.Sandbox, kind string) (p placed, ok bool) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return noHost, false
	}
	if s.lease.Check() != nil {
		<-s.slots
		return noHost, false
	}
	s.updateIndex()
	chosen := s.index.Place(placement.WithoutExpiredRefusals(b, s.conn.Now()), kind)
	if chosen == nil {
		<-s.slots
		return noHost, true
	}
	return s.assign(ctx, b, chosen), true
}

// imageReportDelay is how long it may take until the coordinators know that a host has a new image.
const imageReportDelay = 2 * time.Second

// whyNever returns why waiting cannot help a sandbox, or nil if waiting may help.
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
		return nil // an operator may still load the image on a host
	}
	return why
}

// assign assigns a sandbox to a host. The assignment becomes part of the host's load at once, so that the next choice
// already considers it. If the assignment could not be appended, it no longer counts.
func (s *scheduler) assign(ctx context.Context, b *protocol.Sandbox, chosen *protocol.Host) placed {
	resolved, err := placement.SpecOn(b, chosen)
	if err != nil {
		<-s.slots
		return onHost
	}
	launched, over := s.projection.work.launch(b, chosen.HostID, placement.UsageOf(resolved), s.quota(b.Tenant))
	if !launched {
		<-s.slots
		if over != nil {
			return overTheQuota
		}
		return onHost
	}
	s.append(ctx, b, func(state *protocol.State) ([]protocol.Event, error) {
		return decideAssign(state, b.Generation, chosen.Worker, chosen.HostID, resolved)
	})
	return onHost
}

// append appends a decision about a waiting sandbox in the background, and then frees the slot that the caller took.
// The lease is checked again just before the decision is appended.
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
			s.log.Warn("could not place a sandbox; trying again later", "sandbox", b.ID, "error", err)
		}
	})
}

// whileLeading wraps a decision so that it fails unless the lease is held.
func (l *leader) whileLeading(decide func(*protocol.State) ([]protocol.Event, error)) jetstream.Decide {
	return func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		if err := l.lease.Check(); err != nil {
			return nil, err
		}
		return decide(s)
	}
}
