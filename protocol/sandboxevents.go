package protocol

import (
	"maps"
	"time"
)

// applySandbox folds an event of a sandbox, of its own command or of one of its services.
func (s *State) applySandbox(e *Event) error {
	d := e.Details
	if d == nil {
		d = &SandboxDetails{}
	}
	if err := s.checkSandbox(e, d); err != nil {
		return err
	}
	switch e.Kind {
	case SandboxStopRequested, SandboxResumeRequested, SandboxExtended, SandboxUnchanged, SandboxDeleteRequested:
		s.applyRequest(e, d)
		return nil
	case ServiceReady, ServiceFailed, ServiceHook, ServiceEnded:
		return s.applyService(e)
	case PrimaryStarted, PrimaryEnded:
		return s.applyPrimary(e)
	}
	s.applyProgress(e, d)
	return nil
}

// applyProgress folds an event that says what happened to the sandbox.
func (s *State) applyProgress(e *Event, d *SandboxDetails) {
	b := &s.Sandbox
	switch e.Kind {
	case SandboxAccepted:
		b.accepted(e, d)
	case SandboxAssigned:
		if d.HostID != b.HostID { // the earlier host was lost before the sandbox was ready
			s.leave(e)
		}
		b.assigned(e, d)
	case SandboxRefused:
		b.refused(e)
	case SandboxReplaced:
		s.leave(e)
		b.replaced(e)
	case SandboxPreparing:
		b.Phase, b.Pull = d.Phase, d.Pull
	case SandboxReady, SandboxRestarted:
		b.ready(e, d)
	case SandboxWaiting:
		b.Error, b.Reason = e.Error, e.Reason
	case SandboxStopped:
		b.Error = nil
		b.containerEnded(e)
	case SandboxFailed:
		b.failed(e)
	case SandboxHook:
		b.OnDelete = HookDone
		if e.Error != nil {
			b.OnDelete = HookFailed
		}
	case SandboxUsed:
		if b.State == StateReady {
			b.ActiveAt = e.Time
		}
	case SandboxDeleted:
		b.containerEnded(e)
	}
}

// applyRequest folds an event that a request or a deadline led to, and remembers the request, so that a repeated
// request gets the same answer.
func (s *State) applyRequest(e *Event, d *SandboxDetails) {
	b := &s.Sandbox
	switch e.Kind {
	case SandboxStopRequested:
		b.Desired, b.Reason = StateStopped, e.Reason
		s.remember(e, VerbStop, "")
	case SandboxResumeRequested:
		b.Desired, b.Resuming, b.Reason = StateReady, true, e.Reason
		b.servicesStart(e.Time, true)
		s.remember(e, VerbResume, "")
	case SandboxExtended:
		b.ExpiresAt = d.ExpiresAt
		s.remember(e, VerbExtend, "")
	case SandboxUnchanged:
		s.remember(e, d.Verb, d.Exec)
	case SandboxDeleteRequested:
		b.Desired, b.Reason, b.Resuming, b.Phase, b.Pull = StateDeleted, e.Reason, false, "", nil
		s.remember(e, VerbDelete, "")
	}
}

// checkSandbox rejects an event that lacks required details, and an event that breaks one of the further rules
// documented at [Transitions].
func (s *State) checkSandbox(e *Event, d *SandboxDetails) error {
	b := &s.Sandbox
	switch e.Kind {
	case SandboxAccepted:
		if d.Spec == nil {
			return Errorf(FailedPrecondition, ReasonUndecodable, "%s without a spec", e.Kind)
		}
	case SandboxAssigned:
		return b.checkAssignment(e, d)
	case SandboxRefused, SandboxPreparing, SandboxReady, SandboxRestarted:
		if !b.Assigned {
			return s.illegal(e)
		}
	case SandboxReplaced:
		if b.Desired != StateReady {
			return s.illegal(e)
		}
		for _, x := range s.Execs {
			if x.State == ExecStateRunning {
				return Errorf(FailedPrecondition, ReasonInvalidState, "%s while exec %s runs", e.Kind, x.ID)
			}
		}
	case SandboxStopRequested:
		if b.Desired != StateReady {
			return s.illegal(e)
		}
	case SandboxStopped:
		if b.Desired != StateStopped {
			return s.illegal(e)
		}
		return s.requireNoActiveExecs(e)
	case SandboxExtended:
		if d.ExpiresAt.IsZero() {
			return Errorf(FailedPrecondition, ReasonUndecodable, "%s without a time", e.Kind)
		}
	case SandboxUsed:
		if len(e.Streams) == 0 {
			return Errorf(FailedPrecondition, ReasonUndecodable, "%s without streams", e.Kind)
		}
	case SandboxFailed, SandboxDeleted:
		return s.requireNoActiveExecs(e)
	}
	return nil
}

// checkAssignment rejects an assignment without a worker. A resume must keep its host and generation, and any
// other assignment must increment the generation.
func (b *Sandbox) checkAssignment(e *Event, d *SandboxDetails) error {
	valid := d.Generation == b.Generation+1
	if b.Resuming {
		valid = d.HostID == b.HostID && d.Generation == b.Generation
	}
	if d.Worker == "" || !valid {
		return Errorf(FailedPrecondition, ReasonInvalidState, "%s to %q generation %d after %q generation %d",
			e.Kind, d.Worker, d.Generation, b.Worker, b.Generation)
	}
	return nil
}

func (s *State) requireNoActiveExecs(e *Event) error {
	if s.Sandbox.ActiveExecs > 0 {
		return Errorf(FailedPrecondition, ReasonInvalidState,
			"%s while %d execs have not ended", e.Kind, s.Sandbox.ActiveExecs)
	}
	return nil
}

func (b *Sandbox) accepted(e *Event, d *SandboxDetails) {
	*b = Sandbox{Tenant: e.Tenant, ID: e.Sandbox, Name: d.Name, Spec: *d.Spec, Defaulted: d.Defaulted, Request: e.Request,
		Actor: e.Actor, Desired: StateReady, CreatedAt: e.Time, ActiveAt: e.Time}
	if ttl := b.Spec.TTL; ttl > 0 {
		b.ExpiresAt = e.Time.Add(ttl.Std())
	}
	b.servicesStart(e.Time, false)
}

func (b *Sandbox) assigned(e *Event, d *SandboxDetails) {
	b.Worker, b.HostID, b.Generation = d.Worker, d.HostID, d.Generation
	b.Assigned, b.AssignedAt, b.Phase, b.Pull = true, e.Time, "", nil
	if !b.Resuming { // a resume keeps the container, its spec and services
		b.specOnWorker(d.Spec)
		b.servicesStart(e.Time, false)
		b.Primary = nil
	}
}

// ready sets the fields that describe the running container. A sandbox.restarted event has only the details that
// changed.
func (b *Sandbox) ready(e *Event, d *SandboxDetails) {
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
}

// containerEnded records that the container of a stopped or deleted sandbox no longer runs.
func (b *Sandbox) containerEnded(e *Event) {
	b.Assigned, b.Boot = false, ""
	b.primaryEnded(e)
	setIf(&b.Reason, e.Reason)
}

// failed folds a failure. The event may be the first of its history: a create can fail before it is accepted.
func (b *Sandbox) failed(e *Event) {
	if b.State == StateNone {
		b.Tenant, b.ID, b.Request, b.Actor, b.CreatedAt = e.Tenant, e.Sandbox, e.Request, e.Actor, e.Time
	}
	b.Error, b.Reason, b.Desired = e.Error, e.Reason, StateFailed
	b.Assigned, b.Resuming, b.Phase, b.Pull, b.Refusals = false, false, "", nil, nil
	if b.Reason == "" && e.Error != nil {
		b.Reason = e.Error.Reason
	}
	b.primaryEnded(e)
}

// specOnWorker sets the spec that applies on the assigned worker. The parameter spec is nil if the worker's defaults
// change nothing. Then the accepted spec applies, without the defaults of an earlier worker.
func (b *Sandbox) specOnWorker(spec *SandboxSpec) {
	accepted := *b.AcceptedSpec()
	if spec == nil {
		b.Spec, b.Accepted = accepted, nil
		return
	}
	b.Spec, b.Accepted = *spec, &accepted
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
