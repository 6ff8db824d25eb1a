package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"
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
//   - A sandbox stops only after a stop request, and there is at most one at a time.
//   - An exec is accepted only while the sandbox is ready and desired to be.
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
	{SandboxDeleted, []SandboxState{StateDeleting}, StateDeleted, OwnerEither},
	{ExecAccepted, []SandboxState{StateReady}, StateNone, OwnerCoordinator},
	{ExecStarted, []SandboxState{StateReady}, StateNone, OwnerWorker},
	{ExecCancelRequested, anyLive, StateNone, OwnerCoordinator},
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

// Apply folds the next event into the state; nothing else changes a state's history. It rejects an event that
// is out of sequence or illegal in this state with failed_precondition and changes nothing. It checks
// Event.State if that is set; a writer leaves it empty and sets it from the state afterwards.
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

func (s *State) applySandbox(e *Event) error {
	b := &s.Sandbox
	d := e.Phase
	if d == nil {
		d = &SandboxDetails{}
	}
	switch e.Kind { // long, but flat: one case per kind
	case SandboxAccepted:
		if d.Spec == nil {
			return Errorf(FailedPrecondition, ReasonUndecodable, "%s without a spec", e.Kind)
		}
		*b = Sandbox{Tenant: e.Tenant, ID: e.Sandbox, Name: d.Name, Spec: *d.Spec, BuiltIn: d.BuiltIn, Request: e.Request,
			Actor: e.Actor, Desired: StateReady, CreatedAt: e.Time, ActiveAt: e.Time}
		if ttl := b.Spec.TTL; ttl > 0 {
			b.ExpiresAt = e.Time.Add(ttl.Std())
		}
		b.servicesStart(e.Time, false)
	case SandboxAssigned:
		if d.Worker == "" || b.Resuming && (d.HostID != b.HostID || d.Generation != b.Generation) ||
			!b.Resuming && d.Generation != b.Generation+1 {
			return Errorf(FailedPrecondition, ReasonInvalidState, "%s to %q generation %d after %q generation %d",
				e.Kind, d.Worker, d.Generation, b.Worker, b.Generation)
		}
		b.Worker, b.HostID, b.Generation = d.Worker, d.HostID, d.Generation
		b.Assigned, b.AssignedAt, b.Phase, b.Pull = true, e.Time, "", nil
		if !b.Resuming { // a resume keeps the container, its spec and services
			b.specOnWorker(d.Spec)
			b.servicesStart(e.Time, false)
			b.Primary = nil
		}
	case SandboxRefused:
		if !b.Assigned {
			return s.illegal(e)
		}
		b.refused(e)
	case SandboxReplaced:
		if b.Desired != StateReady {
			return s.illegal(e)
		}
		for _, x := range s.Execs {
			if x.State == ExecStateRunning {
				return Errorf(FailedPrecondition, ReasonInvalidState, "%s while exec %s runs", e.Kind, x.ID)
			}
		}
		b.replaced(e)
	case SandboxPreparing:
		if !b.Assigned {
			return s.illegal(e)
		}
		b.Phase, b.Pull = d.Phase, d.Pull
	case SandboxReady, SandboxRestarted:
		if !b.Assigned {
			return s.illegal(e)
		}
		setIf(&b.Image, d.Image)
		setIf(&b.Isolation, d.Isolation)
		setIf(&b.Container, d.Container)
		setIf(&b.Subnet, d.Subnet)
		setIf(&b.Boot, d.Boot)
		setIf(&b.Digest, d.Digest)
		if d.Ports != nil {
			b.Ports = d.Ports
		}
		b.Phase, b.Pull, b.Reason, b.Error, b.Resuming = "", nil, e.Reason, nil, false
		b.ActiveAt, b.Refusals = e.Time, nil
		if e.Kind == SandboxReady {
			b.ReadyAt = e.Time
		}
	case SandboxWaiting:
		b.Error, b.Reason = e.Error, e.Reason
	case SandboxStopRequested:
		if b.Desired != StateReady {
			return s.illegal(e)
		}
		b.Desired, b.Reason = StateStopped, e.Reason
		s.remember(e, VerbStop, "")
	case SandboxStopped:
		if b.Desired != StateStopped {
			return s.illegal(e)
		}
		if err := s.requireNoActiveExecs(e); err != nil {
			return err
		}
		b.Assigned, b.Boot, b.Error = false, "", nil
		b.primaryEnded(e)
		setIf(&b.Reason, e.Reason)
	case SandboxResumeRequested:
		b.Desired, b.Resuming, b.Reason = StateReady, true, e.Reason
		b.servicesStart(e.Time, true)
		s.remember(e, VerbResume, "")
	case SandboxExtended:
		if d.ExpiresAt.IsZero() {
			return Errorf(FailedPrecondition, ReasonUndecodable, "%s without a time", e.Kind)
		}
		b.ExpiresAt = d.ExpiresAt
		s.remember(e, VerbExtend, "")
	case SandboxUnchanged:
		s.remember(e, d.Verb, d.Exec)
	case SandboxFailed:
		if err := s.requireNoActiveExecs(e); err != nil {
			return err
		}
		if b.State == StateNone {
			b.Tenant, b.ID, b.Request, b.CreatedAt = e.Tenant, e.Sandbox, e.Request, e.Time
		}
		b.Error, b.Reason, b.Desired = e.Error, e.Reason, StateFailed
		b.Assigned, b.Resuming, b.Phase, b.Pull, b.Refusals = false, false, "", nil, nil
		if b.Reason == "" && e.Error != nil {
			b.Reason = e.Error.Reason
		}
		b.primaryEnded(e)
	case SandboxDeleteRequested:
		b.Desired, b.Reason, b.Resuming, b.Phase, b.Pull = StateDeleted, e.Reason, false, "", nil
		s.remember(e, VerbDelete, "")
	case SandboxHook:
		b.OnDelete = HookDone
		if e.Error != nil {
			b.OnDelete = HookFailed
		}
	case SandboxDeleted:
		if err := s.requireNoActiveExecs(e); err != nil {
			return err
		}
		b.Assigned, b.Boot = false, ""
		b.primaryEnded(e)
		setIf(&b.Reason, e.Reason)
	case ServiceReady, ServiceFailed, ServiceHook, ServiceEnded:
		return s.applyService(e)
	case PrimaryStarted, PrimaryEnded:
		return s.applyPrimary(e)
	}
	return nil
}

// specOnWorker sets the spec for the assigned worker: there, or the accepted spec if there is nil. Values from
// a previous worker's defaults do not remain.
func (b *Sandbox) specOnWorker(there *SandboxSpec) {
	accepted := b.AcceptedSpec()
	if there == nil {
		b.Spec, b.Accepted = *accepted, nil
		return
	}
	kept := *accepted
	b.Spec, b.Accepted = *there, &kept
}

// servicesStart marks every service of the spec as starting.
func (b *Sandbox) servicesStart(at time.Time, resumed bool) {
	names, required := b.Spec.Services()
	b.Services = nil
	for _, name := range names {
		b.setService(name, ServiceStatus{State: ServiceStateStarting, Required: required[name], Resumed: resumed, Since: at})
	}
}

// setService replaces the map instead of changing it, because clones of the state share it.
func (b *Sandbox) setService(name string, status ServiceStatus) {
	services := maps.Clone(b.Services)
	if services == nil {
		services = map[string]ServiceStatus{}
	}
	services[name] = status
	b.Services = services
}

func (s *State) applyService(e *Event) error {
	b := &s.Sandbox
	if e.Service == nil || e.Service.Name == "" {
		return Errorf(FailedPrecondition, ReasonUndecodable, "%s without a service", e.Kind)
	}
	status := b.Services[e.Service.Name]
	if e.Kind == ServiceHook {
		status.Hooks = e.Service.Hook
		b.setService(e.Service.Name, status)
		return nil
	}
	if e.Kind == ServiceEnded {
		status.Ends, status.Boot, status.LastExit = e.Service.Ends, e.Service.Boot, e.Service.ExitCode
		b.setService(e.Service.Name, status)
		return nil
	}
	status.State, status.Reason, status.Error, status.Since = ServiceStateReady, e.Reason, e.Error, e.Time
	if e.Kind == ServiceFailed {
		status.State = ServiceStateFailed
	}
	b.setService(e.Service.Name, status)
	return nil
}

func setIf(field *string, value string) {
	if value != "" {
		*field = value
	}
}

func (s *State) requireNoActiveExecs(e *Event) error {
	if s.Sandbox.ActiveExecs > 0 {
		return Errorf(FailedPrecondition, ReasonInvalidState,
			"%s while %d execs have not ended", e.Kind, s.Sandbox.ActiveExecs)
	}
	return nil
}

func (s *State) applyExec(e *Event) error {
	d, b := e.Exec, &s.Sandbox
	if d == nil || d.ID == "" {
		return Errorf(FailedPrecondition, ReasonUndecodable, "%s without an exec", e.Kind)
	}
	t := execTransitionOf[e.Kind]
	old := s.Execs[d.ID]
	var from ExecState
	if old != nil {
		from = old.State
	}
	if !slices.Contains(t.From, from) {
		return Errorf(FailedPrecondition, ReasonInvalidState,
			"%s is not legal for exec %s that is %s", e.Kind, d.ID, describeExec(from))
	}
	if e.Kind == ExecAccepted {
		if b.Desired != StateReady {
			return s.illegal(e)
		}
		if d.Spec == nil {
			return Errorf(FailedPrecondition, ReasonUndecodable, "%s without a spec", e.Kind)
		}
		old = &Exec{Tenant: e.Tenant, Sandbox: e.Sandbox, ID: d.ID, Spec: *d.Spec, Request: e.Request,
			Actor: e.Actor, AcceptedAt: e.Time, AcceptSequence: e.Sequence}
	}
	x := *old
	if t.To != "" {
		x.State = t.To
	}
	if d.State != "" && d.State != x.State {
		return Errorf(FailedPrecondition, ReasonInvalidState,
			"event %d %s claims exec state %q, the fold gives %q", e.Sequence, e.Kind, d.State, x.State)
	}
	x.Sequence, x.Record = e.Sequence, e.Record
	switch {
	case e.Kind == ExecAccepted:
		b.ActiveExecs++
		b.TotalExecs++
		if e.Request != d.ID { // otherwise UseOf finds it in Execs
			s.remember(e, VerbExec, d.ID)
		}
	case e.Kind == ExecStarted:
		x.Boot, x.StartedAt, x.StartSequence = d.Boot, e.Time, e.Sequence
	case e.Kind == ExecCancelRequested:
		x.Cancelling = true
		s.remember(e, VerbCancel, d.ID)
	case x.State.Terminal():
		x.end(e)
		if e.Kind == ExecCancelled {
			s.remember(e, VerbCancel, d.ID)
		}
		b.ActiveExecs--
		s.Ended = append(s.Ended, d.ID)
	}
	if e.Kind != ExecCancelRequested {
		b.ActiveAt = e.Time
	}
	if s.Execs == nil {
		s.Execs = map[string]*Exec{}
	}
	s.Execs[d.ID] = &x
	s.ExecRecord = e.Record
	return nil
}

// end records how the exec ended.
func (x *Exec) end(e *Event) {
	d := e.Exec
	x.ExitCode, x.Reason, x.Error, x.EndedAt = d.ExitCode, e.Reason, e.Error, e.Time
	x.StdoutBytes, x.StderrBytes, x.Truncated, x.Inline = d.StdoutBytes, d.StderrBytes, d.Truncated, d.Inline
	x.OOMKills, x.OutputError = d.OOMKills, d.OutputError
	if !d.Started.IsZero() {
		x.StartedAt = d.Started
	}
	if !d.Ended.IsZero() {
		x.EndedAt = d.Ended
	}
	x.Spec.Stdin = nil
}

func describeExec(s ExecState) string {
	if s == "" {
		return "not accepted"
	}
	return string(s)
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
