package protocol

import (
	"maps"
	"slices"
	"time"
)

// SandboxState is the state of a sandbox.
type SandboxState string

// The states. Whether the host is reachable is a separate condition, [Sandbox.Unreachable].
const (
	StateNone     SandboxState = ""         // not accepted yet
	StatePending  SandboxState = "pending"  // accepted, or being resumed
	StateReady    SandboxState = "ready"    // running and accepting execs, unless Desired says that it is being stopped
	StateStopped  SandboxState = "stopped"  // its container is stopped and retained
	StateFailed   SandboxState = "failed"   // Error says why; it can only be deleted
	StateDeleting SandboxState = "deleting" // being removed
	StateDeleted  SandboxState = "deleted"  // nothing is left on the host; the history is retained for a while
)

// Outcomes of a hook.
const (
	HookDone   = "done"
	HookFailed = "failed"
)

// ReservesName reports whether a sandbox in this state reserves its name. A sandbox in any other state never returns to
// a state that reserves its name.
func (s SandboxState) ReservesName() bool {
	return s == StatePending || s == StateReady || s == StateStopped
}

// ExecState is the state of an exec.
type ExecState string

// The states. All but the first two are terminal.
const (
	ExecStateAccepted  ExecState = "accepted"
	ExecStateRunning   ExecState = "running"
	ExecStateFinished  ExecState = "finished"  // ended by itself, with any exit code
	ExecStateFailed    ExecState = "failed"    // could not run, or was interrupted
	ExecStateCancelled ExecState = "cancelled" // ended because its cancel or the sandbox's end was requested
	ExecStateTimedOut  ExecState = "timed_out" // its timeout expired
)

// Terminal reports whether an exec in this state has ended.
func (s ExecState) Terminal() bool {
	switch s {
	case ExecStateFinished, ExecStateFailed, ExecStateCancelled, ExecStateTimedOut:
		return true
	}
	return false
}

// Sandbox is the full state of a sandbox, folded from its history.
type Sandbox struct {
	Tenant string       `json:"tenant"`
	ID     string       `json:"id"`
	Name   string       `json:"name,omitempty"` // unique while pending, ready or stopped
	Spec   SandboxSpec  `json:"spec"`           // resolved, with the defaults of its worker
	State  SandboxState `json:"state"`
	// state that the sandbox should reach: ready, stopped or deleted; failed once it has failed
	Desired  SandboxState `json:"desired"`
	Sequence uint64       `json:"sequence"`        // sequence of its last event
	Request  string       `json:"request"`         // id of the create request
	Actor    string       `json:"actor,omitempty"` // user who created it
	Reason   string       `json:"reason,omitempty"`
	// why it failed, or, while it is ready, why its restart waits
	Error          *Error                   `json:"error,omitempty"`
	Phase          string                   `json:"phase,omitempty"` // phase of the create, while pending
	Pull           *PullProgress            `json:"pull,omitempty"`  // image pull, in phase image
	Worker         string                   `json:"worker,omitempty"`
	HostID         string                   `json:"host_id,omitempty"`
	Generation     uint64                   `json:"generation,omitempty"` // 1 on the first host, +1 per reassignment
	Assigned       bool                     `json:"assigned,omitempty"`   // uses capacity of its host
	Resuming       bool                     `json:"resuming,omitempty"`   // pending after a stop, bound to its host
	Image          string                   `json:"image,omitempty"`
	Isolation      string                   `json:"isolation,omitempty"`
	Container      string                   `json:"container,omitempty"`
	Subnet         string                   `json:"subnet,omitempty"`
	Boot           string                   `json:"boot,omitempty"`
	Digest         string                   `json:"digest,omitempty"` // digest of the image, from its registry
	Ports          []Port                   `json:"ports,omitempty"`  // published ports
	Services       map[string]ServiceStatus `json:"services,omitempty"`
	Primary        *PrimaryStatus           `json:"primary,omitempty"` // status of its own command, if it has one
	CreatedAt      time.Time                `json:"created_at"`
	StateChangedAt time.Time                `json:"state_changed_at"`
	AssignedAt     time.Time                `json:"assigned_at,omitempty,omitzero"`
	ReadyAt        time.Time                `json:"ready_at,omitempty,omitzero"`
	// when an exec was last accepted, started or ended, when a client last had a stream into the sandbox, such as a
	// connection to a server, or when the sandbox became ready; idle_ttl counts from here
	ActiveAt  time.Time `json:"active_at,omitempty,omitzero"`
	ExpiresAt time.Time `json:"expires_at,omitempty,omitzero"` // when its ttl deletes it
	// outcome of its on_delete command: done or failed; empty: it did not run
	OnDelete    string `json:"on_delete,omitempty"`
	ActiveExecs int    `json:"active_execs,omitempty"`
	TotalExecs  int    `json:"total_execs,omitempty"`
	// deleted, and only the tombstone remains of its history
	HistoryPurged bool `json:"history_purged,omitempty"`
	// its host does not answer; a condition added on reads
	Unreachable bool `json:"unreachable,omitempty"`
	// the accepted spec, if the worker's defaults changed Spec
	Accepted *SandboxSpec `json:"accepted,omitempty"`
	// fields of the accepted spec that no layer sets
	Defaulted []string `json:"built_in,omitempty"`
	// stream sequence of the message with its last event; reading continues from there
	Record uint64 `json:"record,omitempty"`
	// last refusal of each host that had no room for it, newest last
	Refusals []Refusal `json:"refusals,omitempty"`
}

// AcceptedSpec returns the accepted spec, without a worker's defaults. The caller must not change it.
func (b *Sandbox) AcceptedSpec() *SandboxSpec {
	if b.Accepted != nil {
		return b.Accepted
	}
	return &b.Spec
}

// Exec is the full state of an exec, folded from its sandbox's history.
type Exec struct {
	Tenant      string    `json:"tenant"`
	Sandbox     string    `json:"sandbox"`
	ID          string    `json:"id"`
	Spec        ExecSpec  `json:"spec"` // resolved
	State       ExecState `json:"state"`
	Request     string    `json:"request"`
	Actor       string    `json:"actor,omitempty"` // user who requested it
	Sequence    uint64    `json:"sequence"`        // sequence of its last event
	Record      uint64    `json:"record"`          // stream sequence of the message with its last event
	Boot        string    `json:"boot,omitempty"`
	ExitCode    *int      `json:"exit_code,omitempty"` // nil: unknown, or not ended
	Reason      string    `json:"reason,omitempty"`
	Error       *Error    `json:"error,omitempty"`
	Cancelling  bool      `json:"cancelling,omitempty"` // its cancel was requested; it may still end in another state
	AcceptedAt  time.Time `json:"accepted_at"`
	StartedAt   time.Time `json:"started_at,omitempty,omitzero"`
	EndedAt     time.Time `json:"ended_at,omitempty,omitzero"`
	StdoutBytes int64     `json:"stdout_bytes"`
	StderrBytes int64     `json:"stderr_bytes"`
	Truncated   bool      `json:"truncated,omitempty"`
	// number of the sandbox's processes that the kernel's OOM killer ended while the exec ran
	OOMKills int  `json:"oom_kills,omitempty"`
	Inline   bool `json:"inline,omitempty"` // the output is in the event at Record, not in the log stream

	// OutputError says why output after StdoutBytes and StderrBytes is missing: the output log accepted nothing
	// for too long, or the host's disk was full (reason disk_full). ExitCode is still valid.
	OutputError *Error `json:"output_error,omitempty"`

	// StdoutSHA256 and StderrSHA256 are the SHA-256, in hex, of the first StdoutBytes bytes of stdout and the first
	// StderrBytes bytes of stderr. A hash is empty if the stream has no bytes, or if the worker did not know the hash.
	StdoutSHA256 string `json:"stdout_sha256,omitempty"`
	StderrSHA256 string `json:"stderr_sha256,omitempty"`

	// StartSequence is the sequence of its exec.started, by which a supervisor recognizes a repeated start. 0:
	// not started.
	StartSequence uint64 `json:"start_sequence,omitempty"`

	// AcceptSequence is the sequence of its exec.accepted. It orders a sandbox's execs.
	AcceptSequence uint64 `json:"accept_sequence,omitempty"`

	// Signals are the newest signals that clients sent to the exec, oldest first, at most [KeptSignals]. An exec that
	// ended long ago has none; its history has them.
	Signals []ExecSignal `json:"signals,omitempty"`
}

// FoldVersion is the version of [State] and of the results of [State.Apply]. Stored states of another version are
// discarded and their histories folded again. Increment it with every change of State, of the types in it, or of the
// effect of an event. Otherwise coordinators would use stored states that lack the new information.
const FoldVersion = 8

// State is the fold of a sandbox's history: the sandbox, its execs that have not ended, and its newest ended
// execs. The zero value is the state of an empty history. Exec values are replaced, never changed, so that
// [State.Clone] is cheap.
type State struct {
	Sandbox Sandbox          `json:"sandbox"`
	Execs   map[string]*Exec `json:"execs,omitempty"`
	Ended   []string         `json:"ended,omitempty"` // ids of the ended execs still in Execs, oldest first
	// Requests has ids of stop, resume, extend and delete requests from older snapshots; no new ids are added.
	Requests []string `json:"requests,omitempty"`
	Uses     Uses     `json:"uses,omitempty"` // what request ids were used for

	ExecRecord uint64 `json:"exec_record,omitempty"` // stream sequence of the newest message with an exec event

	// Left has the hosts that the sandbox was moved away from, oldest first. Only the newest of these hosts are kept.
	Left []LeftHost `json:"left,omitempty"`
}

// Clone returns a copy of the state. It shares Exec values and use blocks, which never change.
func (s *State) Clone() *State {
	c := *s
	c.Execs = maps.Clone(s.Execs)
	c.Ended = slices.Clone(s.Ended)
	return &c
}

// Update makes s equal to *to. Before the call, s must be a clone of an earlier or later state of the same sandbox. The
// parameter execs must name every exec that may differ between s and *to; the cost grows with their number.
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

// Exists reports whether the history has an event.
func (s *State) Exists() bool { return s.Sandbox.State != StateNone }

// Active returns the execs that have not ended, in no particular order.
func (s *State) Active() []*Exec {
	var active []*Exec
	for _, e := range s.Execs {
		if !e.State.Terminal() {
			active = append(active, e)
		}
	}
	return active
}

// Trim removes the oldest ended execs until at most keep are left.
func (s *State) Trim(keep int) {
	for len(s.Ended) > keep {
		delete(s.Execs, s.Ended[0])
		s.Ended = s.Ended[1:]
	}
}
