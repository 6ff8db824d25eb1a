package protocol

import (
	"fmt"
	"slices"
)

// Owner is the component that may write an event.
type Owner string

// The owners.
const (
	OwnerCoordinator Owner = "coordinator"
	OwnerWorker      Owner = "worker"
	OwnerEither      Owner = "either"
)

// Transition is one row of the sandbox's state machine.
type Transition struct {
	Kind  Kind
	From  []SandboxState
	To    SandboxState // StateNone: the state stays
	Owner Owner
}

// Transitions is the state machine of a sandbox; [State.Apply] rejects every other event. Further rules:
//   - Each assignment increments the generation, except that a resume assigns the same host and generation
//     again. A sandbox is prepared, ready and restarted only while it is assigned.
//   - A sandbox stops only after a stop request, and has at most one such request at a time.
//   - An exec is accepted only while the sandbox is ready and no stop or delete has been requested.
//   - A sandbox becomes stopped, failed or deleted only when all of its execs have ended.
//   - A sandbox is refused only while it is assigned. It is replaced only while it is desired ready and none
//     of its execs is running.
var Transitions = []Transition{
	{SandboxAccepted, []SandboxState{StateNone}, StatePending, OwnerCoordinator},
	{SandboxAssigned, []SandboxState{StatePending}, StatePending, OwnerCoordinator},
	{SandboxRefused, []SandboxState{StatePending}, StatePending, OwnerWorker},
	{SandboxReplaced, []SandboxState{StateReady}, StatePending, OwnerCoordinator},
	{SandboxPreparing, []SandboxState{StatePending}, StatePending, OwnerWorker},
	{SandboxReady, []SandboxState{StatePending}, StateReady, OwnerWorker},
	{SandboxRestarted, []SandboxState{StateReady}, StateReady, OwnerWorker},
	{SandboxWaiting, []SandboxState{StateReady}, StateReady, OwnerWorker},
	{SandboxStopRequested, []SandboxState{StateReady}, StateReady, OwnerCoordinator},
	{SandboxStopped, []SandboxState{StateReady}, StateStopped, OwnerWorker},
	{SandboxResumeRequested, []SandboxState{StateStopped}, StatePending, OwnerCoordinator},
	{SandboxFailed, []SandboxState{StateNone, StatePending, StateReady, StateStopped}, StateFailed, OwnerEither},
	{SandboxExtended, []SandboxState{StatePending, StateReady, StateStopped}, StateNone, OwnerCoordinator},
	{SandboxUnchanged, anyLive, StateNone, OwnerCoordinator},
	{SandboxDeleteRequested, []SandboxState{StatePending, StateReady, StateStopped, StateFailed},
		StateDeleting, OwnerCoordinator},
	{SandboxHook, []SandboxState{StateDeleting}, StateNone, OwnerWorker},
	{SandboxUsed, []SandboxState{StateReady, StateStopped, StateFailed, StateDeleting}, StateNone, OwnerWorker},
	{SandboxDeleted, []SandboxState{StateDeleting}, StateDeleted, OwnerEither},
	{ExecAccepted, []SandboxState{StateReady}, StateNone, OwnerCoordinator},
	{ExecStarted, []SandboxState{StateReady}, StateNone, OwnerWorker},
	{ExecCancelRequested, anyLive, StateNone, OwnerCoordinator},
	{ExecSignalRequested, anyLive, StateNone, OwnerCoordinator},
	{ExecSignalled, anyLive, StateNone, OwnerWorker},
	{ExecFinished, anyLive, StateNone, OwnerWorker},
	{ExecFailed, anyLive, StateNone, OwnerEither},
	{ExecCancelled, anyLive, StateNone, OwnerEither},
	{ExecTimedOut, anyLive, StateNone, OwnerWorker},
	{PrimaryStarted, anyLive, StateNone, OwnerWorker},
	{PrimaryEnded, anyLive, StateNone, OwnerWorker},
	{ServiceReady, anyLive, StateNone, OwnerWorker},
	{ServiceFailed, anyLive, StateNone, OwnerWorker},
	{ServiceHook, anyLive, StateNone, OwnerWorker},
	{ServiceEnded, anyLive, StateNone, OwnerWorker},
}

var anyLive = []SandboxState{StatePending, StateReady, StateStopped, StateFailed, StateDeleting}

// ExecTransition is one row of the exec's state machine.
type ExecTransition struct {
	Kind Kind
	From []ExecState
	To   ExecState // "": the state stays
}

// ExecTransitions is the state machine of an exec.
var ExecTransitions = []ExecTransition{
	{ExecAccepted, []ExecState{""}, ExecStateAccepted},
	{ExecStarted, []ExecState{ExecStateAccepted}, ExecStateRunning},
	{ExecCancelRequested, []ExecState{ExecStateAccepted, ExecStateRunning}, ""},
	{ExecSignalRequested, []ExecState{ExecStateRunning}, ""},
	{ExecSignalled, []ExecState{ExecStateRunning}, ""},
	{ExecFinished, []ExecState{ExecStateRunning}, ExecStateFinished},
	{ExecFailed, []ExecState{ExecStateAccepted, ExecStateRunning}, ExecStateFailed},
	{ExecCancelled, []ExecState{ExecStateAccepted, ExecStateRunning}, ExecStateCancelled},
	{ExecTimedOut, []ExecState{ExecStateRunning}, ExecStateTimedOut},
}

var (
	transitionOf     = index(Transitions, func(t Transition) Kind { return t.Kind })
	execTransitionOf = index(ExecTransitions, func(t ExecTransition) Kind { return t.Kind })
)

func index[T any](rows []T, kind func(T) Kind) map[Kind]T {
	m := make(map[Kind]T, len(rows))
	for _, row := range rows {
		m[kind(row)] = row
	}
	return m
}

// Apply folds the next event into the state; nothing else changes a state's history. If the event is out of sequence or
// illegal in this state, Apply returns failed_precondition and changes nothing. If Event.State is set, Apply checks it.
// A writer leaves Event.State empty, and sets it from the state afterwards.
func (s *State) Apply(e *Event) error {
	if e.Sequence != s.Sandbox.Sequence+1 {
		return Errorf(FailedPrecondition, ReasonInvalidState,
			"event %d does not follow event %d", e.Sequence, s.Sandbox.Sequence)
	}
	t, known := transitionOf[e.Kind]
	if !known {
		return s.applyUnknown(e)
	}
	if !slices.Contains(t.From, s.Sandbox.State) {
		return s.illegal(e)
	}
	next := s.Sandbox.State
	if t.To != StateNone {
		next = t.To
	}
	if e.State != "" && e.State != next {
		return Errorf(FailedPrecondition, ReasonInvalidState,
			"event %d %s claims state %q, the fold gives %q", e.Sequence, e.Kind, e.State, next)
	}
	var err error
	if _, isExec := execTransitionOf[e.Kind]; isExec {
		err = s.applyExec(e)
	} else {
		err = s.applySandbox(e)
	}
	if err != nil {
		return err
	}
	if s.Sandbox.State != next {
		s.Sandbox.State, s.Sandbox.StateChangedAt = next, e.Time
	}
	s.Sandbox.Sequence, s.Sandbox.Record = e.Sequence, e.Record
	return nil
}

// applyUnknown counts an event of an unknown kind, written by a newer version, and otherwise ignores it.
func (s *State) applyUnknown(e *Event) error {
	if !s.Exists() || e.State != "" && e.State != s.Sandbox.State {
		return s.illegal(e)
	}
	s.Sandbox.Sequence, s.Sandbox.Record = e.Sequence, e.Record
	return nil
}

func (s *State) illegal(e *Event) error {
	return Errorf(FailedPrecondition, ReasonInvalidState, "%s is not legal for a sandbox that is %s", e.Kind, s.describe())
}

func (s *State) describe() string {
	b := &s.Sandbox
	switch {
	case b.State == StateNone:
		return "not accepted"
	case b.State == StateReady && b.Desired == StateStopped:
		return "being stopped"
	case b.State == StatePending && b.Resuming:
		return "being resumed"
	}
	return string(b.State)
}

// Number assigns sequences and states to the events of a decision by applying them to the state. After an
// error, the state is inconsistent and must be discarded.
func (s *State) Number(events []Event) error {
	for i := range events {
		e := &events[i]
		e.Sequence = s.Sandbox.Sequence + 1
		if err := s.Apply(e); err != nil {
			return fmt.Errorf("number event %d: %w", e.Sequence, err)
		}
		e.State = s.Sandbox.State
		if e.Exec != nil {
			if x := s.Execs[e.Exec.ID]; x != nil {
				e.Exec.State = x.State
			}
		}
	}
	return nil
}

// ApplyTombstone sets an empty state from a tombstone, the last event of a deleted sandbox whose history is no longer
// retained. Errors: failed_precondition if the state is not empty or the event is not a tombstone.
func (s *State) ApplyTombstone(e *Event) error {
	if s.Exists() || e.Kind != SandboxDeleted {
		return Errorf(FailedPrecondition, ReasonSequenceNotKept, "%s at %d is not a tombstone", e.Kind, e.Sequence)
	}
	s.Sandbox = Sandbox{Tenant: e.Tenant, ID: e.Sandbox, State: StateDeleted, Desired: StateDeleted,
		Sequence: e.Sequence, Record: e.Record, Reason: e.Reason, StateChangedAt: e.Time, HistoryPurged: true}
	return nil
}
