package coordinator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// wish takes over what an operator wants of a host; nil for nothing.
func (h *hosts) wish(hostID string, w *protocol.HostWish) {
	if w != nil && w.Forget != nil && w.Forget.Done { // once it is known
		defer func() { h.projection.lookAtAll(h.projection.on(hostID), h.now()) }()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if w == nil {
		if h.forgottenLocked(hostID) { // nothing is on it any more
			delete(h.known, h.ids[hostID])
			delete(h.ids, hostID)
		}
		delete(h.wishes, hostID)
	} else {
		h.wishes[hostID] = w
	}
	if e := h.known[h.ids[hostID]]; e != nil {
		h.noteLocked(e)
	} else {
		h.projection.wakeUp()
	}
}

// wished lists what is wanted of hosts. Nobody changes what a wish points to.
func (h *hosts) wished() []*protocol.HostWish {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*protocol.HostWish, 0, len(h.wishes))
	for _, w := range h.wishes {
		list = append(list, w)
	}
	return list
}

// forgotten says whether a host was given up and has not come back.
func (h *hosts) forgotten(hostID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forgottenLocked(hostID)
}

func (h *hosts) forgottenLocked(hostID string) bool {
	w := h.wishes[hostID]
	if hostID == "" || w == nil || w.Forget == nil || !w.Forget.Done {
		return false
	}
	e := h.known[h.ids[hostID]]
	return e == nil || e.host.Token <= w.Forget.Token && !e.heardOf(h.timing)
}

// allForgotten lists the ids of the hosts that were given up and have not come back.
func (h *hosts) allForgotten() (ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.wishes {
		if h.forgottenLocked(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// heardOf says whether there was a sign of life just now.
func (e *hostEntry) heardOf(t Timing) bool {
	return !e.lost && !e.heard.IsZero() && time.Since(e.heard) <= t.Suspect
}

// show adds to a host what is wanted of it. The caller holds the lock.
func (h *hosts) show(host *protocol.Host) {
	if w := h.wishes[host.HostID]; w != nil {
		host.Cordoned, host.Drain = w.Cordoned, w.Drain
	}
}

// carryOutWishes gives up the hosts that are to be forgotten, once they are lost, and takes the wish back of those
// that came back, or have nothing on them any more. since says since when hosts are lost, as far as this leader saw.
func (c *coordinator) carryOutWishes(ctx context.Context, lease *jetstream.Lease, hosts map[string]*protocol.Host, since map[string]time.Time) {
	c.forgetOld(ctx, hosts, since)
	for _, w := range c.hosts.wished() {
		if lease.Check() != nil {
			return
		}
		f := w.Forget
		var err error
		switch {
		case f == nil || f.Refused != nil:
		case f.Done && !c.hosts.forgotten(w.HostID):
			c.log.Info("a host that was forgotten is back", "worker", w.Worker, "host", w.HostID)
			err = c.carriedOut(ctx, w)
		case f.Done && c.conn.Now().Sub(w.Time) > c.cfg.Timing.Keep && len(c.projection.on(w.HostID)) == 0:
			err = c.carriedOut(ctx, w)
		case !f.Done:
			err = c.forget(ctx, w, hosts[w.HostID])
		}
		if err != nil && ctx.Err() == nil {
			c.log.Warn("what is wanted of a host is carried out later", "host", w.HostID, "error", err)
		}
	}
}

// carriedOut takes back the wish that a host be forgotten, as it was found.
func (c *coordinator) carriedOut(ctx context.Context, found *protocol.HostWish) error {
	_, err := c.conn.ChangeHostWish(ctx, found.HostID, func(w *protocol.HostWish) error {
		if w.Forget != nil && w.Forget.Done && w.Forget.Token == found.Forget.Token {
			w.Forget = nil
		}
		return nil
	})
	return err
}

// forget gives up a host that is lost: while nobody can hold its lock, it is noted that all there is on it is over.
// What follows for each sandbox is decided afterwards, see dueForgotten, as long as the host has not come back.
func (c *coordinator) forget(ctx context.Context, w *protocol.HostWish, h *protocol.Host) error {
	if h != nil && h.State == protocol.HostSuspect {
		return nil // it is to be seen whether it is lost
	}
	holder := jetstream.Holder{Name: c.cfg.Name, Instance: ulid.Make().String(), Detail: "gives up a host that does not come back"}
	if h == nil || h.State == protocol.HostLost {
		err := c.conn.SeizeHost(ctx, w.HostID, holder, func(token uint64) error {
			_, err := c.conn.ChangeHostWish(ctx, w.HostID, func(w *protocol.HostWish) error {
				if w.Forget != nil {
					w.Forget = &protocol.HostForget{Since: w.Forget.Since, Done: true, Token: token}
					w.Cordoned, w.Drain = false, nil
				}
				return nil
			})
			return err
		})
		if err == nil {
			c.log.Warn("a host is forgotten", "worker", w.Worker, "host", w.HostID)
			return c.forgetImages(ctx, w)
		}
		if held := (*jetstream.HeldError)(nil); !errors.As(err, &held) {
			return err
		}
	}
	_, err := c.conn.ChangeHostWish(ctx, w.HostID, func(w *protocol.HostWish) error {
		if w.Forget != nil && !w.Forget.Done {
			w.Forget = &protocol.HostForget{Since: w.Forget.Since,
				Refused: protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonHostHeld, "the host of worker %s is back", w.Worker)}
		}
		return nil
	})
	return err
}

// forgetImages takes back what the worker of a forgotten host said of its images.
func (c *coordinator) forgetImages(ctx context.Context, w *protocol.HostWish) error {
	for _, h := range c.hosts.list() {
		if h.Worker == w.Worker && h.HostID != w.HostID {
			return nil // its name is another host's
		}
	}
	return c.conn.ForgetImages(ctx, w.Worker)
}

// forgetOld forgets hosts that have been lost for as long as the operator's host_forget_after.
func (c *coordinator) forgetOld(ctx context.Context, hosts map[string]*protocol.Host, since map[string]time.Time) {
	for id, h := range hosts {
		if h.State != protocol.HostLost {
			delete(since, id)
			continue
		}
		if _, seen := since[id]; !seen {
			since[id] = time.Now()
		}
		if c.cfg.HostForgetAfter == 0 || time.Since(since[id]) < c.cfg.HostForgetAfter {
			continue
		}
		if _, err := c.conn.ChangeHostWish(ctx, id, func(w *protocol.HostWish) error {
			if w.Forget == nil || w.Forget.Refused != nil {
				w.Worker, w.Forget = h.Worker, &protocol.HostForget{Since: c.conn.Now()}
			}
			return nil
		}); err != nil && ctx.Err() == nil {
			c.log.Warn("a host is forgotten later", "host", id, "error", err)
		}
	}
}

// dueForgotten returns the decision about a sandbox whose host was forgotten, nil for none. One that was not ready
// yet is placed elsewhere, as on every lost host.
func dueForgotten(b *protocol.Sandbox) func(s *protocol.State) ([]protocol.Event, error) {
	why := protocol.Errorf(protocol.Unavailable, protocol.ReasonHostForgotten, "host %s (worker %s) was lost, and forgotten by its operator", b.HostID, b.Worker)
	switch {
	case b.State == protocol.StateDeleting:
		return func(s *protocol.State) ([]protocol.Event, error) { return decideGone(s, why) }
	case replaces(b):
		return func(s *protocol.State) ([]protocol.Event, error) { return decideReplace(s, why) }
	case b.State == protocol.StateReady, b.State == protocol.StateStopped, b.State == protocol.StatePending && b.Resuming:
		return func(s *protocol.State) ([]protocol.Event, error) { return decideGiveUp(s, why) }
	}
	return nil
}

// decideGone ends a sandbox that is to be deleted and whose host does not come back.
func decideGone(s *protocol.State, why *protocol.Error) ([]protocol.Event, error) {
	if s.Sandbox.State != protocol.StateDeleting {
		return nil, nil
	}
	return append(endExecs(s, why), protocol.Event{Kind: protocol.SandboxDeleted, Reason: s.Sandbox.Reason}), nil
}

// decideGiveUp fails a sandbox whose host does not come back, a stopped one too.
func decideGiveUp(s *protocol.State, why *protocol.Error) ([]protocol.Event, error) {
	switch s.Sandbox.State {
	case protocol.StatePending, protocol.StateReady, protocol.StateStopped:
		return append(endExecs(s, why), protocol.Event{Kind: protocol.SandboxFailed, Error: why, Reason: why.Reason}), nil
	}
	return nil, nil
}

// endExecs ends every exec of a sandbox for the same reason.
func endExecs(s *protocol.State, why *protocol.Error) []protocol.Event {
	var events []protocol.Event
	for _, x := range s.Active() {
		events = append(events, failedExec(x.ID, why))
	}
	return events
}

// replaces says whether a sandbox is made again elsewhere when its host is lost.
func replaces(b *protocol.Sandbox) bool {
	return b.State == protocol.StateReady && b.Desired == protocol.StateReady && b.Spec.OnHostLoss == protocol.OnHostLossReplace
}

// decideReplace has a sandbox made again elsewhere. What ran in it is interrupted. An exec that was accepted and
// never started may run there: no worker starts one without the log, and the log takes no start of the old one's
// worker any more.
func decideReplace(s *protocol.State, why *protocol.Error) ([]protocol.Event, error) {
	if !replaces(&s.Sandbox) {
		return nil, nil
	}
	var events []protocol.Event
	for _, x := range s.Active() {
		if x.State == protocol.ExecStateRunning {
			interrupted := protocol.Errorf(protocol.Unavailable, why.Reason, "the exec was interrupted, and its exit code is not known: %s", why.Message)
			events = append(events, failedExec(x.ID, interrupted))
		}
	}
	return append(events, protocol.Event{Kind: protocol.SandboxReplaced, Reason: why.Reason}), nil
}

// dueDrained returns the decision about a sandbox on a host that is drained, nil for none: it goes as its
// on_host_loss says, once nothing runs in it or the deadline is over.
func (c *coordinator) dueDrained(b *protocol.Sandbox, host *protocol.Host, now time.Time) func(s *protocol.State) ([]protocol.Event, error) {
	if host.State != protocol.HostReady || b.State != protocol.StateReady || b.Desired != protocol.StateReady {
		return nil
	}
	over := !host.Drain.Deadline.IsZero() && now.After(host.Drain.Deadline)
	why := protocol.Errorf(protocol.Unavailable, protocol.ReasonDrained, "host %s (worker %s) is drained", b.HostID, b.Worker)
	switch {
	case replaces(b) && (over || b.ActiveExecs == 0 && c.moves.takenElsewhere(b, now)):
		return func(s *protocol.State) ([]protocol.Event, error) {
			if !over && s.Sandbox.ActiveExecs > 0 {
				return nil, nil
			}
			return decideReplace(s, why)
		}
	case over && b.Spec.OnHostLoss == protocol.OnHostLossFail:
		return func(s *protocol.State) ([]protocol.Event, error) { return decideFail(s, why) }
	case over && !replaces(b):
		return func(s *protocol.State) ([]protocol.Event, error) { return decideStop(s, "", protocol.ReasonDrained) }
	}
	return nil
}

// lookAtWished has the sandboxes looked at that are on hosts of which something is wanted: those of drained ones at
// each scan, since they go when nothing runs in them; those of forgotten ones rarely, after they were when that
// was new, but what is to be deleted there at once.
func (c *coordinator) lookAtWished(hosts map[string]*protocol.Host, round int) {
	now := c.conn.Now()
	for id, h := range hosts {
		if h.Drain != nil {
			c.projection.lookAtAll(c.projection.on(id), now)
		}
	}
	for _, id := range c.hosts.allForgotten() {
		keys := c.projection.owingOn(id)
		if round%lostRounds == 0 {
			keys = c.projection.on(id)
		}
		c.projection.lookAtAll(keys, now)
	}
}

// owingOn returns the sandboxes of a host about which its worker has something to do.
func (p *projection) owingOn(hostID string) []key {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if u := p.index.hosts[hostID]; u != nil {
		return slices.Collect(maps.Keys(u.owing))
	}
	return nil
}

// replaceable returns the sandboxes that are made again where their host is lost, of those with trees.
func (p *projection) replaceable() (list []*protocol.Sandbox) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, b := range p.sandboxes {
		if replaces(b) && len(b.Spec.Copies) > 0 {
			list = append(list, b)
		}
	}
	return list
}

func (p *projection) lookAtAll(keys []key, at time.Time) {
	for _, k := range keys {
		p.lookAt(k, at)
	}
}

// holds adds to hosts how many sandboxes are on each, and how many of their execs have not ended.
func (p *projection) holds(hosts []*protocol.Host) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, h := range hosts {
		u := p.index.hosts[h.HostID]
		if u == nil {
			continue
		}
		h.Holds = map[string]int{}
		for k := range u.sandboxes {
			b := p.sandboxes[k]
			h.Holds[string(b.State)]++
			h.Execs += b.ActiveExecs
		}
	}
}

// moves is what of drained hosts moves in one scan: each that does takes room of the host that it may go to.
type moves struct {
	mu      sync.Mutex
	hosts   []*protocol.Host
	images  placement.Images
	decided map[key]bool // a decision may be asked for again
}

// begin begins a scan.
func (m *moves) begin(hosts []*protocol.Host, images placement.Images) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hosts, m.images, m.decided = hosts, images, map[key]bool{}
}

// takenElsewhere says whether another host has room for a sandbox.
func (m *moves) takenElsewhere(b *protocol.Sandbox, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key{Tenant: b.Tenant, ID: b.ID}
	if taken, decided := m.decided[k]; decided || m.decided == nil {
		return taken
	}
	again := *placement.WithoutExpiredRefusals(b, now)
	again.State, again.Worker, again.HostID = protocol.StatePending, "", ""
	chosen, _ := placement.Place(&again, m.hosts, m.images)
	if m.decided[k] = chosen != nil; chosen != nil {
		placement.UsageOf(&b.Spec).AddTo(chosen)
	}
	return chosen != nil
}
