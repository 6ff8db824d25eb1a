package coordinator

import (
	"github.com/boxfleet/boxfleet/protocol"
)

// This file has the decisions on sandboxes whose host is lost, forgotten or drained.

// decideGone ends a sandbox that is being deleted on a host that does not come back.
func decideGone(s *protocol.State, why *protocol.Error) ([]protocol.Event, error) {
	if s.Sandbox.State != protocol.StateDeleting {
		return nil, nil
	}
	return append(failExecs(s, why), protocol.Event{Kind: protocol.SandboxDeleted, Reason: s.Sandbox.Reason}), nil
}

// decideGiveUp fails a sandbox whose host does not come back. It also fails a stopped sandbox.
func decideGiveUp(s *protocol.State, why *protocol.Error) ([]protocol.Event, error) {
	switch s.Sandbox.State {
	case protocol.StatePending, protocol.StateReady, protocol.StateStopped:
		failed := protocol.Event{Kind: protocol.SandboxFailed, Error: why, Reason: why.Reason}
		return append(failExecs(s, why), failed), nil
	}
	return nil, nil
}

// replaces reports whether a sandbox must be created again on another host if its host is lost.
func replaces(b *protocol.Sandbox) bool {
	return b.State == protocol.StateReady && b.Desired == protocol.StateReady &&
		b.Spec.OnHostLoss == protocol.OnHostLossReplace
}

// decideReplace takes a sandbox from its host, so that the sandbox is created again on another host. Running execs are
// interrupted. An exec that was accepted but not started may run in the new container. The old worker cannot start that
// exec any more: a worker appends the start before it starts an exec, and the log no longer accepts this append from
// the old worker.
func decideReplace(s *protocol.State, why *protocol.Error) ([]protocol.Event, error) {
	if !replaces(&s.Sandbox) {
		return nil, nil
	}
	var events []protocol.Event
	for _, x := range s.Active() {
		if x.State == protocol.ExecStateRunning {
			interrupted := protocol.Errorf(protocol.Unavailable, why.Reason,
				"the exec was interrupted, and its exit code is not known: %s", why.Message)
			events = append(events, failedExec(x.ID, interrupted))
		}
	}
	return append(events, protocol.Event{Kind: protocol.SandboxReplaced, Reason: why.Reason}), nil
}
