package coordinator

import (
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/protocol"
)

// decision returns the events that follow from a deadline.
type decision func(s *protocol.State) ([]protocol.Event, error)

// due returns the decision that a sandbox's deadlines or the state of its host require; nil: no decision.
func (w *watchdog) due(b *protocol.Sandbox, host *protocol.Host, now time.Time) decision {
	if w.hosts.forgotten(b.HostID) {
		if decide := dueForgotten(b); decide != nil {
			return decide
		}
	}
	if host != nil && host.Drain != nil {
		if decide := w.dueDrained(b, host, now); decide != nil {
			return decide
		}
	}
	lost := host == nil || host.State == protocol.HostLost
	switch {
	case !b.ExpiresAt.IsZero() && now.After(b.ExpiresAt) && b.Desired != protocol.StateDeleted:
		return func(s *protocol.State) ([]protocol.Event, error) { return decideDelete(s, "", protocol.ReasonTTL) }
	case b.State == protocol.StatePending:
		return w.duePending(b, lost, now)
	case lost && host != nil:
		if decide := dueHostLost(b); decide != nil {
			return decide
		}
	}
	return dueAge(b, now, w.cfg.CleanupTTL)
}

// duePending returns the decision about a pending sandbox that should have a host, or be ready, by now; nil: no
// decision.
func (w *watchdog) duePending(b *protocol.Sandbox, lost bool, now time.Time) decision {
	reasons := lazy(func() string {
		if why := w.heldBy(b); why != nil {
			return ": " + why.Message
		}
		return placement.Reasons(placement.WithoutExpiredRefusals(b, now), w.recent.list(w.hosts), w.images.list())
	})
	deadline := queueDeadline(b, w.cfg.Timing.Overdue)
	switch {
	case !b.Assigned && now.After(deadline):
		return fail(protocol.DeadlineExceeded, protocol.ReasonQueueTimeout,
			"no host took the sandbox within %s%s", b.Spec.QueueTimeout, reasons)
	case b.Assigned && !lost && now.Sub(b.AssignedAt) > b.Spec.CreateTimeout.Std()+w.cfg.Timing.Overdue:
		// A worker enforces the create timeout itself and reports a better error. This case handles a worker that
		// hangs.
		return fail(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout, "not ready within %s",
			b.Spec.CreateTimeout)
	case b.Assigned && lost && now.After(deadline):
		// If the host comes back later, its worker removes the container of a sandbox that it was creating, and stops
		// the container of a sandbox that it was resuming.
		return fail(protocol.Unavailable, protocol.ReasonHostLost,
			"host %s (worker %s) was lost before the sandbox was ready, and no host took the sandbox within %s%s",
			b.HostID, b.Worker, deadline.Sub(b.AssignedAt), reasons)
	}
	return nil
}

// dueHostLost returns the decision that a sandbox's on_host_loss requires; nil: no decision.
func dueHostLost(b *protocol.Sandbox) decision {
	switch {
	case b.State == protocol.StateReady && b.Spec.OnHostLoss == protocol.OnHostLossFail:
		return fail(protocol.Unavailable, protocol.ReasonHostLost, "host %s (worker %s) was lost", b.HostID, b.Worker)
	case replaces(b):
		why := protocol.Errorf(protocol.Unavailable, protocol.ReasonHostLost,
			"host %s (worker %s) was lost", b.HostID, b.Worker)
		return func(s *protocol.State) ([]protocol.Event, error) { return decideReplace(s, why) }
	}
	return nil
}

// dueAge returns the decision about a sandbox that has been idle, stopped or failed for too long; nil: no decision.
func dueAge(b *protocol.Sandbox, now time.Time, cleanup time.Duration) decision {
	idle := b.State == protocol.StateReady && b.Desired == protocol.StateReady && b.ActiveExecs == 0
	ended := b.State == protocol.StateStopped || b.State == protocol.StateFailed
	switch {
	case idle && b.Spec.IdleTTL > 0 && now.Sub(b.ActiveAt) > b.Spec.IdleTTL.Std():
		return func(s *protocol.State) ([]protocol.Event, error) { return decideStop(s, "", protocol.ReasonIdleTTL) }
	case ended && now.Sub(b.StateChangedAt) > cleanup:
		return func(s *protocol.State) ([]protocol.Event, error) {
			return decideDelete(s, "", protocol.ReasonCleanupTTL)
		}
	}
	return nil
}

func fail(code protocol.Code, reason, format string, args ...any) decision {
	return func(s *protocol.State) ([]protocol.Event, error) {
		return decideFail(s, protocol.Errorf(code, reason, format, args...))
	}
}

// queueDeadline returns the time until which a pending sandbox waits for a host. If the sandbox's host was lost before
// the sandbox was ready, the wait lasts at least the create timeout plus overdue, so that the host has time to come
// back.
func queueDeadline(b *protocol.Sandbox, overdue time.Duration) time.Time {
	if !b.Assigned {
		return b.StateChangedAt.Add(b.Spec.QueueTimeout.Std())
	}
	return b.AssignedAt.Add(max(b.Spec.QueueTimeout.Std(), b.Spec.CreateTimeout.Std()+overdue))
}

// lazy is a text that is computed only when it is printed. Most deadlines that are checked have not passed, so most
// texts are not needed.
type lazy func() string

func (f lazy) String() string { return f() }

// recentHosts caches the list of hosts for a second. Ten thousand sandboxes may fail at once, and each error lists the
// reasons of the hosts.
type recentHosts struct {
	mu    sync.Mutex
	at    time.Time
	hosts []*protocol.Host
}

func (r *recentHosts) list(from *hosts) []*protocol.Host {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts == nil || time.Since(r.at) > time.Second {
		r.hosts, r.at = from.list(), time.Now()
	}
	return r.hosts
}
