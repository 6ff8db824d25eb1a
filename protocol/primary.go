package protocol

import "time"

// PrimaryState is the state of a sandbox's own command.
type PrimaryState string

// The states. One that has ended is started again, after a pause that grows, while the sandbox is ready.
const (
	PrimaryRunning  PrimaryState = "running"
	PrimaryHasEnded PrimaryState = "ended"
)

// PrimaryStatus is what the history says of a sandbox's own command.
type PrimaryStatus struct {
	State    PrimaryState `json:"state"`
	Since    time.Time    `json:"since"`               // of State
	Boot     string       `json:"boot,omitempty"`      // supervisor boot that runs it, or ran it last
	Restarts int          `json:"restarts,omitempty"`  // runs of this boot before this one
	ExitCode *int         `json:"exit_code,omitempty"` // of the newest run that has ended; nil: none has, or it is not known
	Reason   string       `json:"reason,omitempty"`    // of that end: oom_killed, or why it could not be started
	Error    *Error       `json:"error,omitempty"`     // why it could not be started
}

// applyPrimary replaces the status, which a clone of the state shares.
func (s *State) applyPrimary(e *Event) error {
	d := e.Primary
	if d == nil {
		return Errorf(FailedPrecondition, ReasonUndecodable, "%s without its details", e.Kind)
	}
	status := PrimaryStatus{State: PrimaryRunning, Since: e.Time, Boot: d.Boot, Restarts: d.Restarts}
	if before := s.Sandbox.Primary; e.Kind == PrimaryEnded {
		status.State, status.ExitCode, status.Reason, status.Error = PrimaryHasEnded, d.ExitCode, e.Reason, e.Error
	} else if before != nil { // it still shows how the run before ended
		status.ExitCode, status.Reason, status.Error = before.ExitCode, before.Reason, before.Error
	}
	s.Sandbox.Primary = &status
	return nil
}

// primaryOver notes that the command is gone with its container, where no event says how it ended.
func (b *Sandbox) primaryOver(e *Event) {
	if b.Primary == nil || b.Primary.State == PrimaryHasEnded {
		return
	}
	status := *b.Primary
	status.State, status.Since, status.ExitCode, status.Reason, status.Error = PrimaryHasEnded, e.Time, nil, "", nil
	b.Primary = &status
}
