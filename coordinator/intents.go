package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// setIntent records an operator's intent for a host: cordon, drain or forget. w is nil if the operator wants nothing.
func (h *hosts) setIntent(hostID string, w *protocol.OperatorIntent) {
	if w != nil && w.Forget != nil && w.Forget.Done { // inspect the sandboxes after the intent is recorded
		defer func() {
			work := h.projection.work
			work.inspectBy(h.now(), work.hosts.on(hostID)...)
		}()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if w == nil {
		if h.forgottenLocked(hostID) { // the intent was removed because the host has no sandboxes any more
			delete(h.known, h.ids[hostID])
			delete(h.ids, hostID)
		}
		delete(h.intents, hostID)
	} else {
		h.intents[hostID] = w
	}
	if e := h.known[h.ids[hostID]]; e != nil {
		h.noteLocked(e)
	} else {
		h.projection.work.schedulerWake.Wake()
	}
}

// listIntents returns the intents for all hosts. Callers must not modify them.
func (h *hosts) listIntents() []*protocol.OperatorIntent {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*protocol.OperatorIntent, 0, len(h.intents))
	for _, w := range h.intents {
		list = append(list, w)
	}
	return list
}

// forgotten reports whether a host was forgotten and has not come back.
func (h *hosts) forgotten(hostID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forgottenLocked(hostID)
}

func (h *hosts) forgottenLocked(hostID string) bool {
	w := h.intents[hostID]
	if hostID == "" || w == nil || w.Forget == nil || !w.Forget.Done {
		return false
	}
	e := h.known[h.ids[hostID]]
	return e == nil || e.host.Token <= w.Forget.Token && !e.isAlive(h.timing)
}

// allForgotten lists the ids of the hosts that were forgotten and have not come back.
func (h *hosts) allForgotten() (ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.intents {
		if h.forgottenLocked(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// showIntentLocked adds to a host whether its operator has cordoned or drained it.
func (h *hosts) showIntentLocked(host *protocol.Host) {
	if w := h.intents[host.HostID]; w != nil {
		host.Cordoned, host.Drain = w.Cordoned, w.Drain
	}
}

// carryOutIntents forgets each host that an operator wants to forget, as soon as the host is lost. It removes the
// intent when the host has come back, or when the host has no sandboxes any more.
func (w *watchdog) carryOutIntents(ctx context.Context, hosts map[string]*protocol.Host) {
	w.forgetByAge(ctx, hosts)
	for _, intent := range w.hosts.listIntents() {
		if w.lease.Check() != nil {
			return
		}
		f := intent.Forget
		var err error
		switch {
		case f == nil || f.Refused != nil:
		case f.Done && !w.hosts.forgotten(intent.HostID):
			w.log.Info("a host that was forgotten is back", "worker", intent.Worker, "host", intent.HostID)
			err = w.removeForget(ctx, intent)
		case f.Done && w.conn.Now().Sub(intent.Time) > w.cfg.Timing.Keep &&
			len(w.projection.work.hosts.on(intent.HostID)) == 0:
			err = w.removeForget(ctx, intent)
		case !f.Done:
			err = w.forget(ctx, intent, hosts[intent.HostID])
		}
		if err != nil && ctx.Err() == nil {
			w.log.Warn("could not carry out an operator's intent; trying again", "host", intent.HostID, "error",
				err)
		}
	}
}

// removeForget removes the intent to forget a host, unless the intent has changed since the caller read it.
func (w *watchdog) removeForget(ctx context.Context, found *protocol.OperatorIntent) error {
	_, err := w.conn.ChangeOperatorIntent(ctx, found.HostID, func(intent *protocol.OperatorIntent) error {
		if f := intent.Forget; f != nil && f.Done && f.Token == found.Forget.Token {
			intent.Forget = nil
		}
		return nil
	})
	return err
}

// forget gives up a lost host. While it records that the host is forgotten, it holds the host's lock itself, so no
// worker can take the lock. dueForgotten then decides about the host's sandboxes, until the host comes back.
func (w *watchdog) forget(ctx context.Context, intent *protocol.OperatorIntent, h *protocol.Host) error {
	if h != nil && h.State == protocol.HostSuspect {
		return nil // it is not known yet whether the host is lost
	}
	holder := jetstream.Holder{
		Name: w.cfg.Name, Instance: ulid.Make().String(), Detail: "forgetting a host that is lost",
	}
	if h == nil || h.State == protocol.HostLost {
		err := w.conn.SeizeHost(ctx, intent.HostID, holder, func(token uint64) error {
			return w.recordForgotten(ctx, intent.HostID, token)
		})
		if err == nil {
			w.log.Warn("a lost host has been forgotten", "worker", intent.Worker, "host", intent.HostID)
			return w.forgetImages(ctx, intent)
		}
		if held := (*jetstream.HeldError)(nil); !errors.As(err, &held) {
			return err
		}
	}
	_, err := w.conn.ChangeOperatorIntent(ctx, intent.HostID, func(intent *protocol.OperatorIntent) error {
		if intent.Forget != nil && !intent.Forget.Done {
			intent.Forget = &protocol.HostForget{
				Since: intent.Forget.Since,
				Refused: protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonHostHeld,
					"the host of worker %s is back", intent.Worker),
			}
		}
		return nil
	})
	return err
}

// recordForgotten records that a host is forgotten, and with which token its lock was taken.
func (w *watchdog) recordForgotten(ctx context.Context, hostID string, token uint64) error {
	_, err := w.conn.ChangeOperatorIntent(ctx, hostID, func(intent *protocol.OperatorIntent) error {
		if intent.Forget != nil {
			intent.Forget = &protocol.HostForget{Since: intent.Forget.Since, Done: true, Token: token}
			intent.Cordoned, intent.Drain = false, nil
		}
		return nil
	})
	return err
}

// forgetImages removes the report of a forgotten host's worker about the images of the host.
func (w *watchdog) forgetImages(ctx context.Context, intent *protocol.OperatorIntent) error {
	for _, h := range w.hosts.list() {
		if h.Worker == intent.Worker && h.HostID != intent.HostID {
			return nil // another host has the worker's name
		}
	}
	return w.conn.ForgetImages(ctx, intent.Worker)
}

// forgetByAge adds the intent to forget each host that has been lost for host_forget_after.
func (w *watchdog) forgetByAge(ctx context.Context, hosts map[string]*protocol.Host) {
	for id, h := range hosts {
		if h.State != protocol.HostLost {
			delete(w.lostSince, id)
			continue
		}
		if _, seen := w.lostSince[id]; !seen {
			w.lostSince[id] = time.Now()
		}
		if w.cfg.HostForgetAfter == 0 || time.Since(w.lostSince[id]) < w.cfg.HostForgetAfter {
			continue
		}
		if _, err := w.conn.ChangeOperatorIntent(ctx, id, func(intent *protocol.OperatorIntent) error {
			if intent.Forget == nil || intent.Forget.Refused != nil {
				intent.Worker, intent.Forget = h.Worker, &protocol.HostForget{Since: w.conn.Now()}
			}
			return nil
		}); err != nil && ctx.Err() == nil {
			w.log.Warn("could not forget a host that is lost; trying again", "host", id, "error", err)
		}
	}
}

// dueForgotten returns the decision about a sandbox whose host was forgotten; nil: no decision. A sandbox that was not
// ready yet needs no decision here: the scheduler places it on another host, as it does for any lost host.
func dueForgotten(b *protocol.Sandbox) decision {
	why := protocol.Errorf(protocol.Unavailable, protocol.ReasonHostForgotten,
		"host %s (worker %s) was lost, and forgotten by its operator", b.HostID, b.Worker)
	switch {
	case b.State == protocol.StateDeleting:
		return func(s *protocol.State) ([]protocol.Event, error) { return decideGone(s, why) }
	case replaces(b):
		return func(s *protocol.State) ([]protocol.Event, error) { return decideReplace(s, why) }
	case b.State == protocol.StateReady, b.State == protocol.StateStopped,
		b.State == protocol.StatePending && b.Resuming:
		return func(s *protocol.State) ([]protocol.Event, error) { return decideGiveUp(s, why) }
	}
	return nil
}

// dueDrained returns the decision about a sandbox on a drained host; nil: no decision. A sandbox that may be replaced
// is replaced once no exec runs in it and another host has room for it. At the drain's deadline, on_host_loss decides
// about every sandbox.
func (w *watchdog) dueDrained(b *protocol.Sandbox, host *protocol.Host, now time.Time) decision {
	if host.State != protocol.HostReady || b.State != protocol.StateReady || b.Desired != protocol.StateReady {
		return nil
	}
	expired := !host.Drain.Deadline.IsZero() && now.After(host.Drain.Deadline)
	why := protocol.Errorf(protocol.Unavailable, protocol.ReasonDrained,
		"host %s (worker %s) is drained", b.HostID, b.Worker)
	switch {
	case replaces(b) && (expired || b.ActiveExecs == 0 && w.moves.fitsElsewhere(b, now)):
		return func(s *protocol.State) ([]protocol.Event, error) {
			if !expired && s.Sandbox.ActiveExecs > 0 {
				return nil, nil
			}
			return decideReplace(s, why)
		}
	case expired && b.Spec.OnHostLoss == protocol.OnHostLossFail:
		return func(s *protocol.State) ([]protocol.Event, error) { return decideFail(s, why) }
	case expired && !replaces(b):
		return func(s *protocol.State) ([]protocol.Event, error) { return decideStop(s, "", protocol.ReasonDrained) }
	}
	return nil
}

// inspectIntended makes sandboxes on drained and forgotten hosts due for inspection. The sandboxes of a drained host
// are due at each scan, since a sandbox may leave as soon as no exec runs in it. On a forgotten host, sandboxes with
// pending work are due at each scan. The other sandboxes there are due once in lostRounds scans, since setIntent has
// already made all of them due.
func (w *watchdog) inspectIntended(hosts map[string]*protocol.Host, round int) {
	now, work := w.conn.Now(), w.projection.work
	for id, h := range hosts {
		if h.Drain != nil {
			work.inspectBy(now, work.hosts.on(id)...)
		}
	}
	for _, id := range w.hosts.allForgotten() {
		keys := work.hosts.pendingOn(id)
		if round%lostRounds == 0 {
			keys = work.hosts.on(id)
		}
		work.inspectBy(now, keys...)
	}
}

// moves decides which sandboxes of drained hosts may move during one scan. Each sandbox that moves takes room on the
// host that it would go to.
type moves struct {
	mu     sync.Mutex
	hosts  []*protocol.Host
	images placement.Images
	fits   map[key]bool // results of fitsElsewhere in this scan; a second call for a sandbox returns the same result
}

func (m *moves) beginScan(hosts []*protocol.Host, images placement.Images) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hosts, m.images, m.fits = hosts, images, map[key]bool{}
}

// fitsElsewhere reports whether another host has room for a sandbox.
func (m *moves) fitsElsewhere(b *protocol.Sandbox, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key{Tenant: b.Tenant, ID: b.ID}
	if fits, decided := m.fits[k]; decided || m.fits == nil {
		return fits
	}
	unplaced := *placement.WithoutExpiredRefusals(b, now)
	unplaced.State, unplaced.Worker, unplaced.HostID = protocol.StatePending, "", ""
	chosen, _ := placement.Place(&unplaced, m.hosts, m.images)
	if m.fits[k] = chosen != nil; chosen != nil {
		placement.UsageOf(&b.Spec).AddTo(chosen)
	}
	return chosen != nil
}
