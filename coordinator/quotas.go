package coordinator

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// The leader's quotas apply in the whole deployment. The scheduler assigns no host to a sandbox while the quota of its
// tenant has no room. Any coordinator may decide an exec or a create, so two coordinators could each take the last
// room. Therefore a coordinator claims the room from the leader before it appends the first event of such a request
// (quotaclaims.go). The leader counts a claim until it has folded the event. A claim ends before another coordinator
// can lead.

// quotas has the quotas that this coordinator knows.
type quotas struct {
	own     atomic.Pointer[map[string]protocol.Quota] // read from this coordinator's own file
	leaders atomic.Pointer[map[string]protocol.Quota] // the leader's; nil: unknown
	silent  atomic.Int64                              // time since boot, in ns, until which the leader is not asked
}

// quota returns the quota of a tenant.
func (c *coordinator) quota(tenant string) protocol.Quota {
	return quotaIn(c.allQuotas(), tenant)
}

func quotaIn(all map[string]protocol.Quota, tenant string) protocol.Quota {
	if q, named := all[tenant]; named {
		return q
	}
	return all[spec.EveryTenant]
}

// allQuotas returns the leader's quotas, or this coordinator's own while the leader's are unknown.
func (c *coordinator) allQuotas() map[string]protocol.Quota {
	of := c.quotas.leaders.Load()
	if of == nil || c.admitter.Load() != nil {
		of = c.quotas.own.Load()
	}
	if of == nil {
		return nil
	}
	return *of
}

// watchQuotas reads this coordinator's own quotas again once per scan, and asks the leader for its quotas.
func (c *coordinator) watchQuotas(ctx context.Context) error {
	for {
		c.readQuotas()
		if c.admitter.Load() == nil {
			c.askQuotas(ctx)
		}
		if !backoff.Sleep(ctx, c.cfg.Timing.Scan) {
			return ctx.Err()
		}
	}
}

// readQuotas reads this coordinator's own quotas. If that fails, the quotas that were read before stay in force.
func (c *coordinator) readQuotas() {
	if c.cfg.ReadQuotas == nil {
		return
	}
	read, err := c.cfg.ReadQuotas()
	if err == nil {
		err = read.Validate()
	}
	if err != nil {
		c.log.Warn("could not read the quotas again; the quotas that were read before stay in force", "error", err)
		return
	}
	now, before := read.Resolved(), c.quotas.own.Load()
	if before != nil && maps.Equal(now, *before) {
		return
	}
	c.quotas.own.Store(&now)
	if before != nil {
		c.log.Info("the quotas have changed", "entries", len(now))
	}
	c.projection.work.schedulerWake.Wake()
}

// askQuotas asks the leader for its quotas.
func (c *coordinator) askQuotas(ctx context.Context) {
	reply, err := c.conn.AskLeader(ctx, &protocol.LeaderQuery{Quotas: true})
	if err != nil {
		return // there is no leader now, or the leader runs an older version
	}
	theirs := reply.Quotas
	if theirs == nil {
		theirs = map[string]protocol.Quota{}
	}
	before := c.quotas.leaders.Swap(&theirs)
	own := c.quotas.own.Load()
	if (before == nil || !maps.Equal(*before, theirs)) && own != nil && !maps.Equal(*own, theirs) {
		c.log.Warn("the quotas in this coordinator's file differ from the leader's quotas, which apply; "+
			"give all coordinators the same file", "own", len(*own), "leader", len(theirs))
	}
}

// pass lets a request use room in its tenant's quota.
type pass struct {
	c       *coordinator
	claim   protocol.QuotaClaim
	limited bool            // the quota limits what the request needs
	by      *admitter       // the leader that took the claim; nil: another coordinator, or there is no claim
	until   time.Duration   // time since boot until which the claim may be used; 0: there is no usable claim
	taken   bool            // the leader took a claim of this pass at least once
	refused *protocol.Error // the leader's refusal, because the quota has no room; nil: not refused
}

// passFor returns the pass of a request. The pass needs no claim if the tenant's quota does not limit the request.
func (c *coordinator) passFor(claim protocol.QuotaClaim) *pass {
	q := c.quota(claim.Tenant)
	limit := int64(q.Waiting)
	switch {
	case claim.Exec != "":
		limit = int64(q.Execs)
	case claim.Upload != "":
		limit = int64(q.Uploads)
	}
	return &pass{c: c, claim: claim, limited: limit > 0}
}

// errUnclaimed says that a decision needs a claim. A decision does no I/O, so the caller takes the claim and decides
// again.
var errUnclaimed = errors.New("the decision needs room in its tenant's quota")

// check returns nil if the request may be accepted now. Errors: errUnclaimed; the refusal of the leader.
func (p *pass) check() error {
	switch {
	case !p.limited:
		return nil
	case p.refused != nil:
		return p.refused
	case p.until == 0 || p.c.conn.SinceBoot() >= p.until:
		return errUnclaimed
	case p.by != nil && (p.by.lease.Check() != nil || p.c.admitter.Load() != p.by):
		return errUnclaimed
	}
	return nil
}

// allow returns the events of a decision if they may be appended now. A decision without events needs no room.
func (p *pass) allow(events []protocol.Event, err error) ([]protocol.Event, error) {
	if err == nil && len(events) > 0 {
		err = p.check()
	}
	if err != nil {
		return nil, err
	}
	return events, nil
}

// do calls the function decide. Whenever the function fails with errUnclaimed, do takes the claim and calls the
// function again.
func (p *pass) do(ctx context.Context, decide func() ([]protocol.Event, error)) ([]protocol.Event, error) {
	for {
		events, err := decide()
		if !errors.Is(err, errUnclaimed) {
			return events, err
		}
		if err := p.take(ctx); err != nil {
			return nil, err
		}
	}
}

// refusal returns the leader's refusal as an error, or nil if the leader has not refused the claim.
func (p *pass) refusal() error {
	if p.refused == nil {
		return nil
	}
	return p.refused
}

// take claims the room. A refusal is not an error of take: check returns it. Error: unavailable with reason no_leader.
func (p *pass) take(ctx context.Context) error {
	c := p.c
	began := c.conn.SinceBoot()
	p.by, p.until, p.refused = c.admitter.Load(), 0, nil
	reply := &protocol.LeaderReply{}
	if p.by != nil {
		if reply = p.by.claim(&p.claim); reply == nil {
			return errNoLeader()
		}
	} else {
		if int64(began) < c.quotas.silent.Load() {
			return errNoLeader()
		}
		var err error
		if reply, err = c.conn.AskLeader(ctx, &protocol.LeaderQuery{Claim: &p.claim}); err != nil {
			e := protocol.AsError(err)
			if e.Reason == protocol.ReasonNoLeader {
				// Many requests may wait for the same leader. They must not all wait until a query to the leader fails.
				c.quotas.silent.Store(int64(c.conn.SinceBoot() + leaderPause))
				return err
			}
			if e.Code != protocol.ResourceExhausted {
				return err
			}
			reply = &protocol.LeaderReply{Error: e}
		}
	}
	if p.refused = reply.Error; p.refused == nil {
		p.until, p.taken = began+reply.Lasts.Std(), true
	}
	return nil
}

// leaderPause is how long a coordinator waits, after the leader has not answered, before it asks again.
const leaderPause = 200 * time.Millisecond

func errNoLeader() error {
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonNoLeader,
		"no coordinator leads now, and only the leader knows whether the tenant's quota has room")
}

// leave gives the room back if the request has not used it. err is the error of the append. If err leaves the outcome
// unknown, the claim stays until it expires.
func (p *pass) leave(appended bool, err error) {
	if !p.taken || appended || err != nil && logUnavailable(err) {
		return
	}
	if p.by != nil {
		p.c.projection.work.tenants.drop(nameOfClaim(&p.claim))
		return
	}
	if err := p.c.conn.TellLeader(&protocol.LeaderQuery{Release: &p.claim}); err != nil {
		p.c.log.Debug("could not give a claim back; it will expire", "error", err)
	}
}

// claimLife is how long a claim may be used at most.
const claimLife = 10 * time.Second

// admitter answers, on the leader, queries about the room in quotas.
type admitter struct {
	*leader
	uploads *uploadUsage
}

// admit answers questions about quotas while the lease lasts.
func (l *leader) admit(ctx context.Context) error {
	if err := l.awaitLog(ctx); err != nil {
		return err
	}
	l.projection.work.tenants.forgetClaims()
	a := &admitter{leader: l, uploads: newUploadUsage()}
	defer l.admitter.Store(nil)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.followUploads(ctx) })
	group.Go(func() error { return a.dropExpired(ctx) })
	group.Go(func() error {
		return l.retry(ctx, "answer other coordinators", func() error {
			defer l.admitter.Store(nil)
			answer := func(q *protocol.LeaderQuery) *protocol.LeaderReply { return a.answer(ctx, q) }
			return l.conn.ServeLeader(ctx, answer, func() { l.admitter.Store(a) })
		})
	})
	return group.Wait()
}

// answer returns the answer to another coordinator, or nil if this coordinator does not lead.
func (a *admitter) answer(ctx context.Context, q *protocol.LeaderQuery) *protocol.LeaderReply {
	switch {
	case a.lease.Check() != nil:
		return nil
	case q.Claim != nil:
		return a.claim(q.Claim)
	case q.Release != nil:
		a.release(ctx, nameOfClaim(q.Release))
		return &protocol.LeaderReply{}
	case q.Quotas:
		return &protocol.LeaderReply{Quotas: a.allQuotas()}
	case q.Tenant != "":
		return &protocol.LeaderReply{Tenants: []*protocol.Tenant{a.tenant(q.Tenant, a.waitingByTenant)}}
	case q.Tenants:
		page, next, err := a.tenants(&protocol.Query{Limit: cmp.Or(q.Limit, math.MaxInt), Page: q.Page})
		if q.Limit == 0 && next != "" { // a coordinator of an earlier version knows no pages; it then uses its own list
			err = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonUnsupported,
				"the list of tenants has several pages: run the same version on all coordinators")
		}
		return &protocol.LeaderReply{Tenants: page, Next: next, Error: protocol.AsError(err)}
	}
	return &protocol.LeaderReply{Error: protocol.Errorf(protocol.InvalidArgument, protocol.ReasonUnsupported,
		"the leader does not know this query: run the same version on all coordinators")}
}

// claim takes room in a tenant's quota. It returns nil if this coordinator cannot decide, because it does not lead or
// is reading the log again.
func (a *admitter) claim(c *protocol.QuotaClaim) *protocol.LeaderReply {
	trusted, err := a.lease.Trusted()
	if err != nil || !a.projection.isCurrent() {
		return nil
	}
	now := a.conn.SinceBoot()
	lasts := min(trusted-now, claimLife)
	uploads := protocol.Bytes(0)
	if c.Upload != "" {
		if !a.uploads.known() {
			return nil
		}
		uploads = a.uploads.of(c.Tenant, c.Upload, a.conn.Now())
	}
	over := a.projection.work.tenants.take(c, a.quota(c.Tenant), uploads, now+lasts)
	return &protocol.LeaderReply{Error: over, Lasts: protocol.Duration(lasts)}
}

// release ends a claim whose request needs it no longer.
func (a *admitter) release(ctx context.Context, name claimName) {
	if name.upload == "" {
		a.projection.work.tenants.drop(name)
		return
	}
	a.projection.work.tenants.expire(name)
	_ = a.dropUpload(ctx, name) // dropExpired tries again
}

// drop drops expired claims. The claims of uploads come last, because only they need the store of uploads, which may
// not answer.
func (a *admitter) drop(ctx context.Context, names []claimName, now time.Duration) {
	for _, name := range names {
		if name.upload == "" {
			a.projection.work.tenants.dropExpired(name, now)
		}
	}
	for _, name := range names {
		if name.upload != "" && a.dropUpload(ctx, name) != nil {
			return
		}
	}
}

// dropExpired drops the claims that no coordinator may use any more. First it waits until this coordinator has folded
// every batch that was appended while one of these claims could be used.
func (a *admitter) dropExpired(ctx context.Context) error {
	for {
		now := a.conn.SinceBoot()
		if names := a.projection.work.tenants.expired(now); len(names) > 0 {
			if err := a.awaitLog(ctx); err != nil {
				return err
			}
			a.drop(ctx, names, now)
		}
		if !backoff.Sleep(ctx, a.cfg.Timing.Scan) {
			return ctx.Err()
		}
	}
}

// neverFits returns an error if a sandbox exceeds its tenant's quota even when nothing else uses the quota.
func (c *coordinator) neverFits(b *protocol.Sandbox) *protocol.Error {
	quota := c.quota(b.Tenant)
	if quota == (protocol.Quota{}) {
		return nil
	}
	over := overAlone(b.Tenant, b.AcceptedSpec(), quota)
	if over == nil || len(b.Defaulted) == 0 {
		return over
	}
	hosts, _ := c.hostTable.now(c) // a worker's defaults may ask for less than the built-in ones
	for _, h := range hosts {
		if h.Defaults == nil {
			continue
		}
		if s, err := placement.SpecOn(b, h); err == nil && overAlone(b.Tenant, s, quota) == nil {
			return nil
		}
	}
	return over
}

// overAlone returns an error if a sandbox alone needs more than a limit of the quota allows. The error names the limit.
func overAlone(tenant string, s *protocol.SandboxSpec, quota protocol.Quota) *protocol.Error {
	over := overQuota(tenant, load{}, loadOf(placement.UsageOf(s)), quota)
	if over != nil {
		over.Message += "; waiting would not help, so ask for less"
	}
	return over
}

// heldBy returns an error if a sandbox waits because of its tenant's quota. The error names the limit.
func (c *coordinator) heldBy(b *protocol.Sandbox) *protocol.Error {
	quota := c.quota(b.Tenant)
	if quota == (protocol.Quota{}) || !waitsForHost(b) {
		return nil
	}
	return c.projection.work.over(key{Tenant: b.Tenant, ID: b.ID}, loadOf(placement.UsageOf(&b.Spec)), quota)
}
