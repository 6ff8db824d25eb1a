package coordinator

import (
	"cmp"
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// watchExecs inspects the execs that have not ended, once per scan.
func (w *watchdog) watchExecs(ctx context.Context) error {
	return w.eachScan(ctx, func() {
		active := w.projection.work.withExecs()
		w.unstarted.beginScan()
		w.overdue.beginScan()
		if len(active) == 0 {
			return
		}
		hosts, now := map[string]*protocol.Host{}, moment{time.Now(), w.conn.Now()}
		for _, h := range w.hosts.list() {
			hosts[h.HostID] = h
		}
		for _, b := range active {
			err := w.endLateExecs(ctx, key{Tenant: b.Tenant, ID: b.ID}, b, hosts[b.HostID], now)
			if err != nil && ctx.Err() == nil {
				w.log.Warn("the watchdog could not end the late execs of a sandbox; trying again",
					"sandbox", b.ID, "error", err)
			}
		}
	})
}

// moment is one point in time, read from two clocks. own is the time of this process's clock, for periods that the
// process measures itself. store is the time of the event log's clock, for comparison with the times of events. An
// operator may set the event log's clock.
type moment struct{ own, store time.Time }

// endLateExecs ends the late execs of a sandbox. An exec is late in three cases: it was not started in time; it ran
// beyond its own timeout plus the time that the worker has to report the end; or it was not started before its host was
// lost.
func (w *watchdog) endLateExecs(
	ctx context.Context, k key, b *protocol.Sandbox, host *protocol.Host, now moment,
) error {
	lost := host == nil || host.State == protocol.HostLost
	if b.State == protocol.StatePending || replaces(b) { // execs that are not started wait for the new container
		lost = false
	}
	reason := protocol.ReasonInterrupted
	if lost {
		reason = protocol.ReasonHostLost
	}
	j := w.projection.journal(k)
	var unstarted, overdue []string
	sealed := "" // why a late exec got no values of secrets
	j.View(func(s *protocol.State, _ uint64) {
		unstarted, overdue = w.lateExecs(k, s, lost, now)
		for _, x := range unstarted {
			sealed = cmp.Or(sealed, whyUnopened(w.coordinator, k.Tenant, s.Execs[x].Spec.SecretFields()))
		}
	})
	if len(unstarted) > 0 {
		if _, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
			return decideStartTimeouts(s, unstarted, cmp.Or(sealed, whyNotStarted(b, host)))
		}); err != nil {
			return err
		}
	}
	if len(overdue) == 0 {
		return nil
	}
	_, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		return decideFailExecs(s, overdue, protocol.Errorf(protocol.Unavailable, reason,
			"worker %s did not report the end of the exec in time; the exit code is not known", b.Worker))
	})
	return err
}

// lateExecs lists the execs that were not started in time, and the execs that should have ended by now.
func (w *watchdog) lateExecs(k key, s *protocol.State, lost bool, now moment) (unstarted, overdue []string) {
	for _, x := range s.Active() {
		accepted := x.State == protocol.ExecStateAccepted
		if accepted && w.unstarted.elapsed(k, x.ID, now.own) > x.Spec.StartWithin() {
			unstarted = append(unstarted, x.ID)
			continue
		}
		late := x.State == protocol.ExecStateRunning && x.Spec.Timeout > 0 &&
			now.store.Sub(x.StartedAt) > x.Spec.Timeout.Std()+x.Spec.Grace.Std()
		switch {
		case late && w.overdue.elapsed(k, x.ID, now.own) > w.cfg.Timing.Overdue,
			accepted && lost && now.store.Sub(x.AcceptedAt) > w.cfg.Timing.Overdue:
			overdue = append(overdue, x.ID)
		}
	}
	return unstarted, overdue
}

// whyNotStarted returns what an accepted exec waits for, as far as this coordinator knows. host is nil if the sandbox
// has no known host.
func whyNotStarted(b *protocol.Sandbox, host *protocol.Host) string {
	switch {
	case b.State == protocol.StatePending:
		return "the sandbox is being created again on another host"
	case host == nil || host.State == protocol.HostLost:
		return "the host of worker " + b.Worker + " is lost"
	case host.State == protocol.HostSuspect:
		return "worker " + b.Worker + " does not answer"
	case host.State == protocol.HostUnhealthy:
		return "worker " + b.Worker + " cannot reach its engine: " + host.Problem
	case b.Error != nil:
		return "worker " + b.Worker + " is restarting the sandbox after an error: " + b.Error.Error()
	}
	return "the sandbox's supervisor is not connected to worker " + b.Worker +
		"; its container may be paused, or restarting"
}
