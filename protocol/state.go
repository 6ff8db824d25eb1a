package protocol

import (
	"maps"
	"slices"
	"time"
)

// SandboxState is the state of a sandbox.
type SandboxState string

// The states. Whether the host is reachable is a condition beside them.
const (
	StateNone     SandboxState = ""         // not accepted yet
	StatePending  SandboxState = "pending"  // accepted, or being resumed
	StateReady    SandboxState = "ready"    // runs, takes execs; Desired says whether it is being stopped
	StateStopped  SandboxState = "stopped"  // its container is stopped and kept
	StateFailed   SandboxState = "failed"   // Error says why; it can only be deleted
	StateDeleting SandboxState = "deleting" // being removed
	StateDeleted  SandboxState = "deleted"  // nothing is left on the host; the history is kept for a while
)

// What became of a hook.
const (
	HookDone   = "done"
	HookFailed = "failed"
)

// HoldsName says whether a sandbox in this state keeps its name from others. There is no way back from those in
// which it does not.
func (s SandboxState) HoldsName() bool {
	return s == StatePending || s == StateReady || s == StateStopped
}

// ExecState is the state of an exec.
type ExecState string

// The states. All but the first two are terminal.
const (
	ExecStateAccepted  ExecState = "accepted"
	ExecStateRunning   ExecState = "running"
	ExecStateFinished  ExecState = "finished"  // it ran and ended by itself; any exit code
	ExecStateFailed    ExecState = "failed"    // it could not be run, or was interrupted
	ExecStateCancelled ExecState = "cancelled" // somebody asked for its end, or for the sandbox's
	ExecStateTimedOut  ExecState = "timed_out" // its timeout was over
)

// Terminal says whether an exec in this state has ended.
func (s ExecState) Terminal() bool {
	switch s {
	case ExecStateFinished, ExecStateFailed, ExecStateCancelled, ExecStateTimedOut:
		return true
	}
	return false
}

// Sandbox is the handle: everything there is to know about a sandbox, folded from its history.
type Sandbox struct {
	Tenant         string                   `json:"tenant"`
	ID             string                   `json:"id"`
	Name           string                   `json:"name,omitempty"` // which it has alone while it is pending, ready or stopped
	Spec           SandboxSpec              `json:"spec"`           // resolved, with the defaults of its worker
	State          SandboxState             `json:"state"`
	Desired        SandboxState             `json:"desired"`  // ready, stopped or deleted: what it is on its way to; failed: nothing
	Sequence       uint64                   `json:"sequence"` // of its last event
	Request        string                   `json:"request"`  // id of the create request
	Reason         string                   `json:"reason,omitempty"`
	Error          *Error                   `json:"error,omitempty"` // why it failed; while it is ready: what its restart waits for
	Phase          string                   `json:"phase,omitempty"` // of the create, while pending
	Pull           *PullProgress            `json:"pull,omitempty"`  // of an image, while in phase image
	Worker         string                   `json:"worker,omitempty"`
	HostID         string                   `json:"host_id,omitempty"`
	Generation     uint64                   `json:"generation,omitempty"` // 1 for the first host, +1 per reassignment
	Assigned       bool                     `json:"assigned,omitempty"`   // holds its host's capacity
	Resuming       bool                     `json:"resuming,omitempty"`   // pending after a stop: bound to its host
	Image          string                   `json:"image,omitempty"`
	Isolation      string                   `json:"isolation,omitempty"`
	Container      string                   `json:"container,omitempty"`
	Subnet         string                   `json:"subnet,omitempty"`
	Boot           string                   `json:"boot,omitempty"`
	Digest         string                   `json:"digest,omitempty"` // of the image, as its registry has it
	Ports          []Port                   `json:"ports,omitempty"`  // as they were given
	Services       map[string]ServiceStatus `json:"services,omitempty"`
	Primary        *PrimaryStatus           `json:"primary,omitempty"` // of its own command, where it has one
	CreatedAt      time.Time                `json:"created_at"`
	StateChangedAt time.Time                `json:"state_changed_at"`
	AssignedAt     time.Time                `json:"assigned_at,omitempty,omitzero"`
	ReadyAt        time.Time                `json:"ready_at,omitempty,omitzero"`
	ActiveAt       time.Time                `json:"active_at,omitempty,omitzero"`  // last start or end of an exec, or ready: idle_ttl counts from here
	ExpiresAt      time.Time                `json:"expires_at,omitempty,omitzero"` // when its ttl is over: it is deleted then
	OnDelete       string                   `json:"on_delete,omitempty"`           // what became of its on_delete command: done, failed; empty: it was not run
	ActiveExecs    int                      `json:"active_execs,omitempty"`
	TotalExecs     int                      `json:"total_execs,omitempty"`
	HistoryPurged  bool                     `json:"history_purged,omitempty"` // deleted, and its history is purged: only this is kept
	Unreachable    bool                     `json:"unreachable,omitempty"`    // condition, added on reading: its host does not answer
	Accepted       *SandboxSpec             `json:"accepted,omitempty"`       // Spec as it was accepted, where the defaults of its worker changed it
	BuiltIn        []string                 `json:"built_in,omitempty"`       // fields of the accepted spec that nobody said
	Record         uint64                   `json:"record,omitempty"`         // stream sequence of the message with its last event: what follows is read from there
	Refusals       []Refusal                `json:"refusals,omitempty"`       // hosts that had no room for it, by the newest refusal of each, the newest last
}

// AcceptedSpec is the spec that was accepted, before a worker's defaults went below it. The caller
// must not change it.
func (b *Sandbox) AcceptedSpec() *SandboxSpec {
	if b.Accepted != nil {
		return b.Accepted
	}
	return &b.Spec
}

// Exec is the handle of an exec.
type Exec struct {
	Tenant      string    `json:"tenant"`
	Sandbox     string    `json:"sandbox"`
	ID          string    `json:"id"`
	Spec        ExecSpec  `json:"spec"` // resolved
	State       ExecState `json:"state"`
	Request     string    `json:"request"`
	Sequence    uint64    `json:"sequence"` // of its last event
	Record      uint64    `json:"record"`   // stream sequence of the message with its last event
	Boot        string    `json:"boot,omitempty"`
	ExitCode    *int      `json:"exit_code,omitempty"` // nil: not known, or not ended
	Reason      string    `json:"reason,omitempty"`
	Error       *Error    `json:"error,omitempty"`
	Cancelling  bool      `json:"cancelling,omitempty"` // somebody asked for its end, whatever came of it
	AcceptedAt  time.Time `json:"accepted_at"`
	StartedAt   time.Time `json:"started_at,omitempty,omitzero"`
	EndedAt     time.Time `json:"ended_at,omitempty,omitzero"`
	StdoutBytes int64     `json:"stdout_bytes"`
	StderrBytes int64     `json:"stderr_bytes"`
	Truncated   bool      `json:"truncated,omitempty"`
	OOMKills    int       `json:"oom_kills,omitempty"` // processes of the sandbox that the kernel killed for want of memory while it ran
	Inline      bool      `json:"inline,omitempty"`    // the output is in the event at Record, not in the log stream

	// OutputError says why output that the command wrote, after StdoutBytes and StderrBytes, is missing:
	// the log of output took none for too long, or, with reason disk_full, the disk of its host was full. The exit code is the command's own all the same.
	OutputError *Error `json:"output_error,omitempty"`

	// StartSequence is the number of its exec.started, by which a supervisor knows a start that it has
	// had. 0: it was not started.
	StartSequence uint64 `json:"start_sequence,omitempty"`

	// AcceptSequence is the number of its exec.accepted: the order of a sandbox's execs.
	AcceptSequence uint64 `json:"accept_sequence,omitempty"`
}

// FoldVersion is the version of [State] and of what [State.Apply] makes of a history. A stored state
// of another version is not used: its history is folded again. Raise it with every change of State's
// fields, of the types in it, or of what an event does to them; otherwise a state that an older
// coordinator stored, which lacks what the new field says, would be believed.
const FoldVersion = 3

// State is the fold of a sandbox's history: the handle, its execs that have not ended, and the
// newest of those that have. The zero value is the empty history. Exec values are replaced, never
// changed, so that a [State.Clone] is cheap.
type State struct {
	Sandbox  Sandbox          `json:"sandbox"`
	Execs    map[string]*Exec `json:"execs,omitempty"`
	Ended    []string         `json:"ended,omitempty"`    // ids of the ended execs still in Execs, oldest first
	Requests []string         `json:"requests,omitempty"` // of an older snapshot: ids of stop, resume, extend and delete requests; only read
	Uses     Uses             `json:"uses,omitempty"`     // what requests were for

	ExecRecord uint64 `json:"exec_record,omitempty"` // stream sequence of the newest message with an event of an exec
}

// Clone copies the state. Exec values, and what is remembered of requests, are shared, since they
// never change.
func (s *State) Clone() *State {
	c := *s
	c.Execs = maps.Clone(s.Execs)
	c.Ended = slices.Clone(s.Ended)
	return &c
}

// Update makes s, a clone of what to was or was to become, a clone of to as it is: only the execs that are
// named may differ. It costs by their number.
func (s *State) Update(to *State, execs map[string]struct{}) {
	own := s.Execs
	if own == nil {
		own = map[string]*Exec{}
	}
	*s = *to
	s.Execs, s.Ended = own, slices.Clip(to.Ended)
	for id := range execs {
		if x := to.Execs[id]; x != nil {
			own[id] = x
		} else {
			delete(own, id)
		}
	}
}

// Exists says whether the history has an event.
func (s *State) Exists() bool { return s.Sandbox.State != StateNone }

// Active lists the execs that have not ended, in no order.
func (s *State) Active() []*Exec {
	var active []*Exec
	for _, e := range s.Execs {
		if !e.State.Terminal() {
			active = append(active, e)
		}
	}
	return active
}

// Trim forgets ended execs, oldest first, until at most keep are left.
func (s *State) Trim(keep int) {
	for len(s.Ended) > keep {
		delete(s.Execs, s.Ended[0])
		s.Ended = s.Ended[1:]
	}
}
