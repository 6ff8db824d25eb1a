package protocol

import "time"

// PrimaryState is the state of a sandbox's own command.
type PrimaryState string

// The states. While the sandbox is ready, a command that ended is restarted after a growing pause.
const (
	PrimaryRunning  PrimaryState = "running"
	PrimaryHasEnded PrimaryState = "ended"
)

// PrimaryStatus is the state of a sandbox's own command as folded from the history.
type PrimaryStatus struct {
	State    PrimaryState `json:"state"`
	Since    time.Time    `json:"since"`               // when State began
	Boot     string       `json:"boot,omitempty"`      // supervisor boot of the current or last run
	Restarts int          `json:"restarts,omitempty"`  // earlier runs in this boot
	ExitCode *int         `json:"exit_code,omitempty"` // exit code of the last ended run; nil: none or unknown
	Reason   string       `json:"reason,omitempty"`    // oom_killed, or why the last run could not start
	Error    *Error       `json:"error,omitempty"`     // why the last run could not start
}

// applyPrimary replaces the status instead of changing it, because clones of the state share it.
func (s *State) applyPrimary(e *Event) error {
	d := e.Primary
	if d == nil {
		return Errorf(FailedPrecondition, ReasonUndecodable, "%s without its details", e.Kind)
	}
	status := PrimaryStatus{State: PrimaryRunning, Since: e.Time, Boot: d.Boot, Restarts: d.Restarts}
	if before := s.Sandbox.Primary; e.Kind == PrimaryEnded {
		status.State, status.ExitCode, status.Reason, status.Error = PrimaryHasEnded, d.ExitCode, e.Reason, e.Error
	} else if before != nil { // keep showing how the previous run ended
		status.ExitCode, status.Reason, status.Error = before.ExitCode, before.Reason, before.Error
	}
	s.Sandbox.Primary = &status
	return nil
}

// primaryEnded records that the sandbox's own command ended with its container, unless an event has already reported
// the command's end.
func (b *Sandbox) primaryEnded(e *Event) {
	if b.Primary == nil || b.Primary.State == PrimaryHasEnded {
		return
	}
	status := *b.Primary
	status.State, status.Since, status.ExitCode, status.Reason, status.Error = PrimaryHasEnded, e.Time, nil, "", nil
	b.Primary = &status
}
