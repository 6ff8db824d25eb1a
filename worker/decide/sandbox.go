package decide

import (
	"cmp"
	"errors"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/progress"
)

// Here calls decide and returns its events if the sandbox is still assigned to this host in this generation. Otherwise
// it returns no events.
func Here(st *protocol.State, hostID string, generation uint64, decide Decision) []protocol.Event {
	if st.Sandbox.HostID != hostID || st.Sandbox.Generation != generation {
		return nil
	}
	return decide(st)
}

// Decision returns the events to append to a history with this state. It returns no events if the decision does not fit
// this state.
type Decision func(st *protocol.State) []protocol.Event

// Refused gives a sandbox back to the coordinators, because this host has no room for it.
func Refused(st *protocol.State, why string) []protocol.Event {
	if st.Sandbox.State != protocol.StatePending || !st.Sandbox.Assigned {
		return nil
	}
	return []protocol.Event{{Kind: protocol.SandboxRefused, Reason: protocol.ReasonNoRoom,
		Error: protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonNoRoom, "%s", why)}}
}

// Phases adds missing phases to the given events. The parameter unreported has the phases of a create that the worker
// has entered, but may not have appended yet. If the create has not ended, Phases puts the phases that the log lacks
// before the events. Otherwise it returns the events unchanged.
func Phases(st *protocol.State, unreported, events []protocol.Event) []protocol.Event {
	if st.Sandbox.State != protocol.StatePending || !st.Sandbox.Assigned {
		return events
	}
	return append(progress.Missing(unreported, st.Sandbox.Phase), events...)
}

// Ready ends a create. run is the newest report on the sandbox's own command.
func Ready(st *protocol.State, run *PrimaryRun, made *protocol.SandboxDetails) []protocol.Event {
	if st.Sandbox.State != protocol.StatePending {
		return nil
	}
	return append(PrimaryEvents(&st.Sandbox, run), protocol.Event{Kind: protocol.SandboxReady, Details: made})
}

// Resumed ends a resume.
func Resumed(st *protocol.State, boot string, ports []protocol.Port) []protocol.Event {
	if st.Sandbox.State != protocol.StatePending {
		return nil
	}
	return []protocol.Event{{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: boot, Ports: ports}}}
}

// Restarted records that the container of a ready sandbox was started again, with a new supervisor.
func Restarted(st *protocol.State, reason, boot string, ports []protocol.Port) []protocol.Event {
	if st.Sandbox.State != protocol.StateReady {
		return nil
	}
	return []protocol.Event{{Kind: protocol.SandboxRestarted, Reason: reason,
		Details: &protocol.SandboxDetails{Boot: boot, Ports: ports}}}
}

// Waiting records why the container of a ready sandbox cannot start again yet: the host lacks something that the
// sandbox needs.
func Waiting(st *protocol.State, why *protocol.Error) []protocol.Event {
	if st.Sandbox.State != protocol.StateReady {
		return nil
	}
	return []protocol.Event{{Kind: protocol.SandboxWaiting, Error: why, Reason: why.Reason}}
}

// Primary records the starts and ends of a ready sandbox's own command.
func Primary(st *protocol.State, run *PrimaryRun) []protocol.Event {
	if st.Sandbox.State != protocol.StateReady {
		return nil
	}
	return PrimaryEvents(&st.Sandbox, run)
}

// Stopped ends a stop: the sandbox's execs and its container have ended.
func Stopped(st *protocol.State, run *PrimaryRun) []protocol.Event {
	if st.Sandbox.State != protocol.StateReady || st.Sandbox.Desired != protocol.StateStopped {
		return nil
	}
	return endSandbox(st, run, protocol.ReasonSandboxStopped,
		protocol.Event{Kind: protocol.SandboxStopped, Reason: st.Sandbox.Reason})
}

// Hook records the outcome of the on_delete hook, once.
func Hook(st *protocol.State, hook protocol.Event) []protocol.Event {
	if st.Sandbox.State != protocol.StateDeleting || st.Sandbox.OnDelete != "" {
		return nil
	}
	return []protocol.Event{hook}
}

// Deleted ends a delete: nothing of the sandbox is left on the host.
func Deleted(st *protocol.State, run *PrimaryRun) []protocol.Event {
	if st.Sandbox.State != protocol.StateDeleting {
		return nil
	}
	return endSandbox(st, run, protocol.ReasonSandboxDeleted,
		protocol.Event{Kind: protocol.SandboxDeleted, Reason: st.Sandbox.Reason})
}

// Failed fails a sandbox, and ends its execs.
func Failed(st *protocol.State, run *PrimaryRun, why *protocol.Error) []protocol.Event {
	if st.Sandbox.State != protocol.StatePending && st.Sandbox.State != protocol.StateReady {
		return nil
	}
	return endSandbox(st, run, protocol.ReasonSandboxFailed,
		protocol.Event{Kind: protocol.SandboxFailed, Error: why, Reason: why.Reason})
}

// endSandbox returns the events that end the sandbox's own command and the sandbox's execs, followed by the given
// event.
func endSandbox(st *protocol.State, run *PrimaryRun, reason string, end protocol.Event) []protocol.Event {
	return append(append(PrimaryEvents(&st.Sandbox, run), endExecs(st, reason)...), end)
}

// PullProgress records the progress of an image pull that the create waits for. current is the phase of the create, or
// "" if the worker does not know the phase.
func PullProgress(st *protocol.State, current string, pull *protocol.PullProgress) []protocol.Event {
	if st.Sandbox.State != protocol.StatePending { // an optional service may still pull its image after the create
		return nil
	}
	phase := cmp.Or(current, st.Sandbox.Phase, "image")
	return []protocol.Event{{Kind: protocol.SandboxPreparing, Details: &protocol.SandboxDetails{Phase: phase, Pull: pull}}}
}

// ErrSuperseded says that nothing was appended, because the events do not fit the newest state of the log.
var ErrSuperseded = errors.New("superseded")

// IgnoreSuperseded returns err, or nil if it is ErrSuperseded.
func IgnoreSuperseded(err error) error {
	if errors.Is(err, ErrSuperseded) {
		return nil
	}
	return err
}
