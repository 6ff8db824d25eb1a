package protocol

import "slices"

// applyExec folds an event of an exec.
func (s *State) applyExec(e *Event) error {
	if e.Exec == nil || e.Exec.ID == "" {
		return Errorf(FailedPrecondition, ReasonUndecodable, "%s without an exec", e.Kind)
	}
	x, err := s.nextExec(e)
	if err != nil {
		return err
	}
	d, b := e.Exec, &s.Sandbox
	switch {
	case e.Kind == ExecAccepted:
		b.ActiveExecs++
		b.TotalExecs++
		if e.Request != d.ID { // otherwise UseOf finds the request in Execs
			s.remember(e, VerbExec, d.ID)
		}
	case e.Kind == ExecStarted:
		x.Boot, x.StartedAt, x.StartSequence = d.Boot, e.Time, e.Sequence
	case e.Kind == ExecCancelRequested:
		x.Cancelling = true
		s.remember(e, VerbCancel, d.ID)
	case e.Kind == ExecSignalRequested:
		if err := x.signal(e); err != nil {
			return err
		}
		s.remember(e, VerbSignal, d.ID)
	case e.Kind == ExecSignalled:
		if err := x.signalled(e); err != nil {
			return err
		}
	case x.State.Terminal():
		x.end(e)
		if e.Kind == ExecCancelled {
			s.remember(e, VerbCancel, d.ID)
		}
		b.ActiveExecs--
		s.Ended = append(s.Ended, d.ID)
	}
	if e.Kind != ExecCancelRequested && e.Kind != ExecSignalRequested && e.Kind != ExecSignalled {
		b.ActiveAt = e.Time
	}
	if s.Execs == nil {
		s.Execs = map[string]*Exec{}
	}
	s.Execs[d.ID] = x
	s.ExecRecord = e.Record
	return nil
}

// nextExec returns a copy of the event's exec, in its state after the event. It returns an error if the event is
// illegal for the exec.
func (s *State) nextExec(e *Event) (*Exec, error) {
	d, t := e.Exec, execTransitionOf[e.Kind]
	x := &Exec{}
	if old := s.Execs[d.ID]; old != nil {
		*x = *old
	}
	if !slices.Contains(t.From, x.State) {
		return nil, Errorf(FailedPrecondition, ReasonInvalidState,
			"%s is not legal for exec %s that is %s", e.Kind, d.ID, describeExec(x.State))
	}
	if e.Kind == ExecAccepted {
		if s.Sandbox.Desired != StateReady {
			return nil, s.illegal(e)
		}
		if d.Spec == nil {
			return nil, Errorf(FailedPrecondition, ReasonUndecodable, "%s without a spec", e.Kind)
		}
		*x = Exec{Tenant: e.Tenant, Sandbox: e.Sandbox, ID: d.ID, Spec: *d.Spec, Request: e.Request,
			Actor: e.Actor, AcceptedAt: e.Time, AcceptSequence: e.Sequence}
	}
	if t.To != "" {
		x.State = t.To
	}
	if d.State != "" && d.State != x.State {
		return nil, Errorf(FailedPrecondition, ReasonInvalidState,
			"event %d %s claims exec state %q, the fold gives %q", e.Sequence, e.Kind, d.State, x.State)
	}
	x.Sequence, x.Record = e.Sequence, e.Record
	return x, nil
}

// end records how the exec ended.
func (x *Exec) end(e *Event) {
	d := e.Exec
	x.ExitCode, x.Reason, x.Error, x.EndedAt = d.ExitCode, e.Reason, e.Error, e.Time
	x.StdoutBytes, x.StderrBytes, x.Truncated, x.Inline = d.StdoutBytes, d.StderrBytes, d.Truncated, d.Inline
	x.OOMKills, x.OutputError = d.OOMKills, d.OutputError
	x.StdoutSHA256, x.StderrSHA256 = d.StdoutSHA256, d.StderrSHA256
	if !d.Started.IsZero() {
		x.StartedAt = d.Started
	}
	if !d.Ended.IsZero() {
		x.EndedAt = d.Ended
	}
	x.Spec.Stdin = nil
	x.closeSignals(e)
}

func describeExec(s ExecState) string {
	if s == "" {
		return "not accepted"
	}
	return string(s)
}
