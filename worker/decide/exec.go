package decide

import (
	"cmp"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// endExecs returns the events that end all active execs, ordered by id. An exec that never started ends as cancelled.
// An exec that was running ends as failed, because it was interrupted.
func endExecs(st *protocol.State, reason string) []protocol.Event {
	var events []protocol.Event
	active := st.Active()
	slices.SortFunc(active, func(a, b *protocol.Exec) int { return cmp.Compare(a.ID, b.ID) })
	for _, x := range active {
		e := protocol.Event{Kind: protocol.ExecCancelled, Reason: reason, Exec: &protocol.ExecDetails{ID: x.ID, Inline: true}}
		if x.State == protocol.ExecStateRunning {
			e.Kind, e.Error, e.Exec.Inline = protocol.ExecFailed, Interrupted(reason), false
		}
		events = append(events, e)
	}
	return events
}

// Interrupted returns the error of an exec whose result is lost.
func Interrupted(reason string) *protocol.Error {
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonInterrupted,
		"the exec was interrupted (%s); its exit code is not known", reason)
}

// ExecStart returns the event that starts an accepted exec under the supervisor with this boot. The parameter waited is
// how long the worker has known the exec. If that is longer than the start of an exec may take, the event fails the
// exec instead.
func ExecStart(st *protocol.State, id, boot string, waited time.Duration) []protocol.Event {
	x := st.Execs[id]
	if x == nil || x.State != protocol.ExecStateAccepted ||
		st.Sandbox.State != protocol.StateReady || st.Sandbox.Desired != protocol.StateReady {
		return nil
	}
	if waited > x.Spec.StartWithin() {
		return failUnstarted(id, protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonStartTimeout,
			"the exec was not started within %s: its worker could not reach the sandbox's supervisor, or NATS",
			x.Spec.StartWithin()))
	}
	return []protocol.Event{{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: id, Boot: boot}}}
}

// StartedBefore returns the sequence number of exec.started if the exec already runs under the supervisor with this
// boot.
func StartedBefore(st *protocol.State, id, boot string) (number uint64, started bool) {
	x := st.Execs[id]
	if x == nil || x.State != protocol.ExecStateRunning || x.Boot != boot {
		return 0, false
	}
	return x.StartSequence, true
}

// ServiceDown fails an exec in a service that was given up. The service's container does not run, and the worker will
// not start it again.
func ServiceDown(st *protocol.State, id, service string) []protocol.Event {
	why := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonServiceDown, "the service %s does not run", service)
	why.Field = "spec.service"
	return ExecUnstartable(st, id, why)
}

// ExecUnstartable fails an accepted exec that cannot start.
func ExecUnstartable(st *protocol.State, id string, why *protocol.Error) []protocol.Event {
	x := st.Execs[id]
	if x == nil || x.State != protocol.ExecStateAccepted {
		return nil
	}
	return failUnstarted(id, why)
}

// failUnstarted fails an exec that never ran.
func failUnstarted(id string, why *protocol.Error) []protocol.Event {
	return []protocol.Event{{Kind: protocol.ExecFailed, Reason: why.Reason, Error: why,
		Exec: &protocol.ExecDetails{ID: id, Inline: true}}}
}

// ExecEnd ends a running exec with its result. The parameter ending is true if this worker told the supervisor to end
// all commands in the exec's container.
func ExecEnd(st *protocol.State, result *control.Result, details *protocol.ExecDetails, ending bool) []protocol.Event {
	x := st.Execs[details.ID]
	if x == nil || x.State != protocol.ExecStateRunning {
		return nil
	}
	return []protocol.Event{endEvent(&st.Sandbox, x, result, details, ending)}
}

// KilledExit is the exit code of a command that was ended by the signal KILL.
const KilledExit = 128 + 9

// endEvent returns the event that ends an exec.
func endEvent(b *protocol.Sandbox, x *protocol.Exec, result *control.Result, details *protocol.ExecDetails,
	ending bool) protocol.Event {
	e := protocol.Event{Kind: protocol.ExecFinished, Exec: details}
	switch {
	case result.Failed:
		e.Kind, e.Error = protocol.ExecFailed, result.Error
		if e.Error == nil {
			e.Error = protocol.Errorf(protocol.Internal, protocol.ReasonStartFailed,
				"the exec failed, and the supervisor gave no reason")
		}
		e.Reason = e.Error.Reason
	case result.TimedOut:
		e.Kind, e.Reason = protocol.ExecTimedOut, protocol.ReasonTimeout
	case result.Cancelled:
		e.Kind, e.Reason = protocol.ExecCancelled, protocol.ReasonCancelRequested
		switch {
		case x.Cancelling:
		case b.Desired == protocol.StateStopped:
			e.Reason = protocol.ReasonSandboxStopped
		case b.Desired == protocol.StateDeleted:
			e.Reason = protocol.ReasonSandboxDeleted
		case ending:
			e.Reason = protocol.ReasonSandboxFailed
		default: // the engine, or an operator on the host, stopped the container
			e.Kind, e.Reason = protocol.ExecFailed, protocol.ReasonInterrupted
			e.Error = protocol.Errorf(protocol.Unavailable, protocol.ReasonInterrupted,
				"the exec was interrupted: its container was stopped from outside Boxfleet")
		}
	case result.OOMKills > 0 && result.ExitCode != nil && *result.ExitCode == KilledExit:
		e.Reason = protocol.ReasonOOMKilled
	}
	return e
}
