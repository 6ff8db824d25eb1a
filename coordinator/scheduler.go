package coordinator

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const standsBy = "decides requests, and stands by to schedule"

// elected says whether this coordinator holds the scheduler's lock.
type elected struct{ atomic.Bool }

// campaign tries to get the scheduler's lock, again and again, and schedules while it has it.
func (c *coordinator) campaign(ctx context.Context) error {
	holder := jetstream.Holder{Name: c.cfg.Name, Instance: ulid.Make().String()}
	for {
		lease, err := c.conn.AcquireScheduler(ctx, holder)
		if err == nil {
			c.log.Info("this coordinator schedules", "token", lease.Token())
			c.lead(ctx, lease)
		} else if held := (*jetstream.HeldError)(nil); !errors.As(err, &held) && ctx.Err() == nil {
			c.log.Warn("the scheduler's lock is not to be had", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(campaignPause):
		}
	}
}

// campaignPause is between two tries to get the scheduler's lock. With the lock's life, it is how long nobody
// schedules after the one who did has died.
const campaignPause = 300 * time.Millisecond

// lead schedules and watches until the lease is lost or ctx ends.
func (c *coordinator) lead(ctx context.Context, lease *jetstream.Lease) {
	leading, stop := context.WithCancel(ctx)
	defer stop()
	group, leading := errgroup.WithContext(leading)
	group.Go(func() error { return lease.Run(leading) })
	group.Go(func() error { return c.schedule(leading, lease) })
	group.Go(func() error { return c.watch(leading, lease) })
	group.Go(func() error { return c.watchReservations(leading) })
	group.Go(func() error { return c.snapshots(leading, lease) })
	group.Go(func() error { return c.compact(leading, lease) })
	group.Go(func() error { return c.boundOutput(leading, lease) })
	group.Go(func() error { return c.keepBlobs(leading, lease) })
	group.Go(func() error { return c.dropImageFiles(leading, lease) })
	c.elected.Store(true)
	c.cfg.OnState(true, "decides requests, and schedules")
	err := group.Wait()
	c.elected.Store(false)
	c.cfg.OnState(true, standsBy)
	if ctx.Err() == nil {
		c.log.Warn("this coordinator no longer schedules", "error", err)
		return
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := lease.Release(release); err != nil {
		c.log.Warn("the scheduler's lock is not given up, and will end by itself", "error", err)
	}
}

// assignsAtOnce is how many assignments are on their way into the log at a time.
const assignsAtOnce = 64

// scheduling is what the scheduler of one lease knows. Its passes run one after another; what they place is
// appended beside them.
type scheduling struct {
	*coordinator
	lease   *jetstream.Lease
	index   *placement.Index
	version uint64                       // of the table of hosts, as the index has it
	looked  time.Time                    // when that was
	kinds   map[*protocol.Sandbox]string // of those that wait
	never   map[string]*protocol.Error   // by kind: why no host of the table ever takes it, nil where one may
	slots   chan struct{}
	group   sync.WaitGroup
}

func (c *coordinator) newScheduling(lease *jetstream.Lease) *scheduling {
	c.images.tellAll()
	return &scheduling{
		coordinator: c, lease: lease, index: placement.NewIndex(), slots: make(chan struct{}, assignsAtOnce),
		kinds: map[*protocol.Sandbox]string{}, never: map[string]*protocol.Error{},
	}
}

// schedule places what is pending, each time something changes.
func (c *coordinator) schedule(ctx context.Context, lease *jetstream.Lease) error {
	s := c.newScheduling(lease)
	defer s.group.Wait()
	c.awaitLog(ctx)
	ticker := time.NewTicker(c.cfg.Timing.Scan)
	defer ticker.Stop()
	for {
		if err := lease.Check(); err == nil {
			s.pass(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.projection.wake:
		case <-ticker.C:
		}
	}
}

// awaitLog waits, for a moment, until what the leader before decided last is known here, so that what it placed
// counts on its hosts.
func (c *coordinator) awaitLog(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, catchUpWithin)
	defer cancel()
	last, err := c.conn.LastRecord(ctx)
	for err == nil && c.projection.followedTo() < last && sleep(ctx, 5*time.Millisecond) {
	}
}

// catchUpWithin bounds how long a new leader waits for the log: the newest of it may have been purged.
const catchUpWithin = time.Second

// waiting lists the sandboxes that wait for a host, the oldest first: those that have none, and
// those that were not ready yet when theirs was lost.
func (c *coordinator) waiting(hosts []*protocol.Host) []*protocol.Sandbox {
	var lost []string
	for _, h := range hosts {
		if h.State == protocol.HostLost {
			lost = append(lost, h.HostID)
		}
	}
	return c.projection.line(append(lost, c.hosts.allForgotten()...), true)
}

// look takes over what changed on the hosts.
func (s *scheduling) look() {
	for worker, told := range s.images.takeChanged() {
		s.index.SetImages(worker, told)
	}
	if s.hosts.changedSince(s.version) || time.Since(s.looked) > s.cfg.Timing.Scan { // one that falls silent says nothing
		s.projection.changedUses() // the rows have them
		rows, version := s.hosts.rows()
		if version != s.version {
			clear(s.never)
		}
		s.version, s.looked = version, time.Now()
		s.index.SetHosts(rows)
		return
	}
	for host, u := range s.projection.changedUses() {
		s.index.SetUsage(host, u)
	}
}

// pass places what waits, the oldest first, as far as there is room. It costs by what waits, and by the hosts that
// changed.
func (s *scheduling) pass(ctx context.Context) {
	s.look()
	line := s.projection.line(append(s.index.Lost(), s.hosts.allForgotten()...), false)
	kinds := make(map[*protocol.Sandbox]string, len(line))
	full, imageless := map[string]bool{}, map[string]*protocol.Error{} // by kind, in this pass
	for _, b := range line {
		kind := s.kinds[b]
		if kind == "" {
			kind = placement.KindOf(b)
		}
		kinds[b] = kind
	}
	s.kinds = kinds
	for _, b := range line {
		kind := kinds[b]
		if !full[kind] {
			select {
			case s.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			if s.lease.Check() != nil {
				<-s.slots
				return
			}
			s.look()
			if chosen := s.index.Place(placement.WithoutExpiredRefusals(b, s.conn.Now()), kind); chosen != nil {
				s.assign(ctx, b, chosen)
				continue
			}
			<-s.slots
			full[kind] = !b.Resuming && len(b.Refusals) == 0 // there is hardly more room before the next pass
		}
		if why := s.whyNever(b, kind, imageless); why != nil && s.projection.launch(b, "", placement.Usage{}) {
			s.slots <- struct{}{}
			s.append(ctx, b, func(state *protocol.State) ([]protocol.Event, error) { return decideFail(state, why) })
		}
	}
}

// whyNever says why it is of no use that a sandbox waits, nil where it may be.
func (s *scheduling) whyNever(b *protocol.Sandbox, kind string, imageless map[string]*protocol.Error) *protocol.Error {
	why, known := s.never[kind]
	if !known {
		why = placement.Impossible(b, s.index.Hosts())
		s.never[kind] = why
	}
	waited := s.conn.Now().Sub(b.StateChangedAt)
	if why != nil || waited <= min(tellTime, s.cfg.Timing.Image) {
		return why
	}
	if why, known = imageless[kind]; !known {
		why = placement.ImageUnavailable(b, s.index.Hosts(), s.index.Images(), s.images.imported())
		imageless[kind] = why
	}
	if why != nil && why.Reason == protocol.ReasonImageNotFound && waited <= s.cfg.Timing.Image {
		return nil // somebody may bring it by hand
	}
	return why
}

// tellTime is how long it takes until the coordinators know of an image that has come to a host.
const tellTime = 2 * time.Second

// assign places a sandbox on a host. It counts there at once, also for the next one, and is taken back should it
// not come into the log.
func (s *scheduling) assign(ctx context.Context, b *protocol.Sandbox, chosen *protocol.Host) {
	there, err := placement.SpecOn(b, chosen)
	if err != nil || !s.projection.launch(b, chosen.HostID, placement.UsageOf(there)) {
		<-s.slots
		return
	}
	s.append(ctx, b, func(state *protocol.State) ([]protocol.Event, error) {
		return decideAssign(state, b.Generation, chosen.Worker, chosen.HostID, there)
	})
}

// append appends what is decided about a sandbox that waits, beside the pass that found it. It gives back the slot
// that the caller took. The lease is looked at once more when its turn in the log has come.
func (s *scheduling) append(ctx context.Context, b *protocol.Sandbox, decide func(*protocol.State) ([]protocol.Event, error)) {
	k := key{Tenant: b.Tenant, ID: b.ID}
	s.group.Go(func() {
		defer func() { <-s.slots }()
		defer s.projection.land(k)
		s.cfg.Probe("assign-before-append")
		_, err := s.projection.journal(k).Do(ctx, func(state *protocol.State, _ time.Time) ([]protocol.Event, error) {
			if err := s.lease.Check(); err != nil {
				return nil, err
			}
			return decide(state)
		})
		if err != nil && ctx.Err() == nil {
			s.log.Warn("a sandbox is not placed, and will be later", "sandbox", b.ID, "error", err)
		}
	})
}
