package coordinator

import (
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// This file has the decisions on requests. Each decision takes a state and returns the events that follow from the
// request, or no events if the history already has them. A request that is delivered twice therefore changes nothing
// the second time.

// decideAccept begins a history. defaulted lists the spec fields that neither the client nor the tenant's defaults set.
func decideAccept(
	s *protocol.State, request, name string, full *protocol.SandboxSpec, defaulted []string,
) ([]protocol.Event, error) {
	if s.Exists() {
		return nil, nil // the reservation says that the id belongs to this request
	}
	return []protocol.Event{{
		Kind: protocol.SandboxAccepted, Request: request,
		Details: &protocol.SandboxDetails{Spec: full, Defaulted: defaulted, Name: name},
	}}, nil
}

// decideAbandoned ends an id that a request reserved and then never used: the history has no first event.
func decideAbandoned(s *protocol.State, request string, why *protocol.Error) ([]protocol.Event, error) {
	if s.Exists() {
		return nil, nil
	}
	return []protocol.Event{{Kind: protocol.SandboxFailed, Request: request, Error: why, Reason: why.Reason}}, nil
}

// repeats reports whether a request was decided before; if so, no events follow from it. It returns an error if the
// request id was used for another purpose.
func repeats(s *protocol.State, request, verb, exec string) (bool, error) {
	u := s.UseOf(request)
	if u == nil {
		return false, nil
	}
	if !u.Is(verb, exec) {
		return false, errRequestUsed(request, u)
	}
	return true, nil
}

func errRequestUsed(request string, u *protocol.Use) error {
	return protocol.Errorf(protocol.AlreadyExists, protocol.ReasonRequestUsed,
		"request id %s was used before in this sandbox, for %s", request, u.Says())
}

// unchanged returns the event by which the history remembers a request that changed nothing. A repeat of the request
// then changes nothing either, even if the sandbox's state is different by then. Decisions without a request are never
// repeated, so they need no such event.
func unchanged(request, verb, exec string) []protocol.Event {
	if request == "" {
		return nil
	}
	return []protocol.Event{{Kind: protocol.SandboxUnchanged, Request: request,
		Details: &protocol.SandboxDetails{Verb: verb, Exec: exec}}}
}

// changes reports whether any event changes the sandbox. An event of the kind sandbox.unchanged only makes the history
// remember a request.
func changes(events []protocol.Event) bool {
	return slices.ContainsFunc(events, func(e protocol.Event) bool { return e.Kind != protocol.SandboxUnchanged })
}

// decideStop stops a sandbox. A sandbox that is stopped, or being stopped, does not change.
func decideStop(s *protocol.State, request, reason string) ([]protocol.Event, error) {
	b := &s.Sandbox
	repeated, err := repeats(s, request, protocol.VerbStop, "")
	switch {
	case !s.Exists():
		return nil, errNoSandbox()
	case err != nil || repeated:
		return nil, err
	case b.State == protocol.StateStopped, b.Desired == protocol.StateStopped:
		return unchanged(request, protocol.VerbStop, ""), nil
	case b.State != protocol.StateReady:
		return nil, errState("stop", b)
	}
	return []protocol.Event{{Kind: protocol.SandboxStopRequested, Request: request, Reason: reason}}, nil
}

// decideResume resumes a stopped sandbox. A sandbox that runs, or is being resumed, does not change.
func decideResume(s *protocol.State, request string) ([]protocol.Event, error) {
	b := &s.Sandbox
	repeated, err := repeats(s, request, protocol.VerbResume, "")
	switch {
	case !s.Exists():
		return nil, errNoSandbox()
	case err != nil || repeated:
		return nil, err
	case b.State == protocol.StatePending && b.Resuming,
		b.State == protocol.StateReady && b.Desired == protocol.StateReady:
		return unchanged(request, protocol.VerbResume, ""), nil
	case b.State != protocol.StateStopped:
		return nil, errState("resume", b)
	}
	return []protocol.Event{{Kind: protocol.SandboxResumeRequested, Request: request}}, nil
}

// decideExtend sets when a sandbox expires. The new time may be earlier or later than the old one.
func decideExtend(s *protocol.State, request string, ttl protocol.Duration, now time.Time) ([]protocol.Event, error) {
	b := &s.Sandbox
	repeated, err := repeats(s, request, protocol.VerbExtend, "")
	switch {
	case !s.Exists():
		return nil, errNoSandbox()
	case err != nil || repeated:
		return nil, err
	case b.State != protocol.StatePending && b.State != protocol.StateReady && b.State != protocol.StateStopped:
		return nil, errState("extend", b)
	}
	return []protocol.Event{{
		Kind: protocol.SandboxExtended, Request: request,
		Details: &protocol.SandboxDetails{ExpiresAt: now.Add(ttl.Std())},
	}}, nil
}

// decideDelete deletes a sandbox in any state; a sandbox without a host is deleted at once. A delete cannot be undone,
// so the history need not remember a request that finds the sandbox deleted.
func decideDelete(s *protocol.State, request, reason string) ([]protocol.Event, error) {
	b := &s.Sandbox
	_, err := repeats(s, request, protocol.VerbDelete, "")
	switch {
	case !s.Exists():
		return nil, errNoSandbox()
	case err != nil || b.Desired == protocol.StateDeleted:
		return nil, err
	}
	events := []protocol.Event{{Kind: protocol.SandboxDeleteRequested, Request: request, Reason: reason}}
	if b.Worker == "" {
		for _, x := range s.Active() { // a sandbox that is being replaced may have active execs
			events = append(events, protocol.Event{Kind: protocol.ExecCancelled, Reason: protocol.ReasonSandboxDeleted,
				Exec: &protocol.ExecDetails{ID: x.ID, Inline: true}})
		}
		events = append(events, protocol.Event{Kind: protocol.SandboxDeleted, Request: request, Reason: reason})
	}
	return events, nil
}

// decideExec accepts an exec if fewer than limit are active. The parameter used is true if the sandbox ever had an exec
// with this id, even if that exec ended too long ago to be in the state.
func decideExec(
	s *protocol.State, request, id string, spec *protocol.ExecSpec, used bool, limit int,
) ([]protocol.Event, error) {
	if used || s.Execs[id] != nil {
		return nil, errExecUsed
	}
	if u := s.UseOf(request); u != nil { // not a repeat: a repeat finds its exec id used, see above
		return nil, errRequestUsed(request, u)
	}
	if err := mayExec(s, limit); err != nil {
		return nil, err
	}
	if _, known := s.Sandbox.Spec.Service(spec.Service); spec.Service != "" && !known {
		return nil, protocol.Invalid("spec.service", "the sandbox has no service %.80q", spec.Service)
	}
	return []protocol.Event{{
		Kind: protocol.ExecAccepted, Request: request, Exec: &protocol.ExecDetails{ID: id, Spec: spec},
	}}, nil
}

// errExecUsed says that an exec id was used before. If the request is a repeat, its first attempt used the id.
var errExecUsed = protocol.Errorf(protocol.AlreadyExists, "exec_id_used", "the exec id was used before in this sandbox")

// mayExec returns why a sandbox accepts no exec now, or nil if it accepts execs.
func mayExec(s *protocol.State, limit int) error {
	b := &s.Sandbox
	switch {
	case !s.Exists():
		return errNoSandbox()
	case b.State == protocol.StateReady && b.Desired == protocol.StateStopped:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxStopping,
			"the sandbox is being stopped")
	case b.State != protocol.StateReady:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxNotReady, "the sandbox is %s",
			b.State)
	case b.ActiveExecs >= limit:
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyExecs,
			"the sandbox has %d active execs, and coordinator.max_active_execs is %d: "+
				"wait until one ends, or cancel one", b.ActiveExecs, limit)
	}
	return nil
}

// decideCancel cancels an exec. An exec that no worker has started ends at once. This is safe: if a worker appends the
// start at the same time, the log accepts only one of the two appends.
func decideCancel(s *protocol.State, request, id string) ([]protocol.Event, error) {
	if !s.Exists() {
		return nil, errNoSandbox()
	}
	x := s.Execs[id]
	repeated, err := repeats(s, request, protocol.VerbCancel, id)
	switch {
	case err != nil || repeated:
		return nil, err
	case x == nil:
		return nil, errNoExec()
	case x.State.Terminal():
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal, "the exec is %s", x.State)
	case x.Cancelling:
		return unchanged(request, protocol.VerbCancel, id), nil
	case x.State == protocol.ExecStateAccepted:
		return []protocol.Event{{
			Kind: protocol.ExecCancelled, Request: request, Reason: protocol.ReasonCancelRequested,
			Exec: &protocol.ExecDetails{ID: id, Inline: true},
		}}, nil
	}
	return []protocol.Event{{Kind: protocol.ExecCancelRequested, Request: request,
		Exec: &protocol.ExecDetails{ID: id}}}, nil
}

// decideAssign assigns a sandbox to a host. The parameter from is the sandbox's generation at the time of the choice,
// and resolved is the sandbox's spec as the chosen host resolves it. No event follows if the sandbox was assigned after
// the choice or is no longer pending.
func decideAssign(
	s *protocol.State, from uint64, worker, hostID string, resolved *protocol.SandboxSpec,
) ([]protocol.Event, error) {
	b := &s.Sandbox
	if b.State != protocol.StatePending || b.Generation != from || b.Resuming && b.Assigned {
		return nil, nil
	}
	generation := b.Generation + 1
	d := &protocol.SandboxDetails{Worker: worker, HostID: hostID, Generation: generation}
	if b.Resuming {
		d.Generation = b.Generation
	} else if !spec.Equal(*resolved, *b.AcceptedSpec()) {
		d.Spec = resolved
	}
	return []protocol.Event{{Kind: protocol.SandboxAssigned, Details: d}}, nil
}

// decideFail fails the active execs of a sandbox, then the sandbox.
func decideFail(s *protocol.State, why *protocol.Error) ([]protocol.Event, error) {
	switch s.Sandbox.State {
	case protocol.StatePending, protocol.StateReady:
	default:
		return nil, nil
	}
	return append(failExecs(s, why), protocol.Event{Kind: protocol.SandboxFailed, Error: why, Reason: why.Reason}), nil
}

// decideFailExecs fails the given execs that have not ended.
func decideFailExecs(s *protocol.State, ids []string, why *protocol.Error) ([]protocol.Event, error) {
	var events []protocol.Event
	for i, id := range ids {
		if x := s.Execs[id]; x != nil && !x.State.Terminal() && !slices.Contains(ids[:i], id) {
			events = append(events, failedExec(id, why))
		}
	}
	return events, nil
}

// failExecs fails every active exec of a sandbox for the same reason.
func failExecs(s *protocol.State, why *protocol.Error) []protocol.Event {
	var events []protocol.Event
	for _, x := range s.Active() {
		events = append(events, failedExec(x.ID, why))
	}
	return events
}

func failedExec(id string, why *protocol.Error) protocol.Event {
	return protocol.Event{Kind: protocol.ExecFailed, Error: why, Reason: why.Reason,
		Exec: &protocol.ExecDetails{ID: id}}
}

// decideStartTimeouts ends execs that were not started in time. This is safe: if a worker appends an exec's start at
// the same time, the log accepts only one of the two appends.
func decideStartTimeouts(s *protocol.State, ids []string, why string) ([]protocol.Event, error) {
	var events []protocol.Event
	for _, id := range ids {
		x := s.Execs[id]
		if x == nil || x.State != protocol.ExecStateAccepted {
			continue
		}
		e := failedExec(id, protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonStartTimeout,
			"the exec was not started within %s: %s", x.Spec.StartWithin(), why))
		e.Exec.Inline = true
		events = append(events, e)
	}
	return events, nil
}

const (
	noSandbox = "no such sandbox"
	noExec    = "no such exec"
)

func errNoSandbox() error { return protocol.Errorf(protocol.NotFound, "", noSandbox) }
func errNoExec() error    { return protocol.Errorf(protocol.NotFound, "", noExec) }

// withMissing adds to errNoSandbox or errNoExec the name or id that the client gave for the missing sandbox or exec.
func withMissing(err error, sandbox, exec string) error {
	if err == nil {
		return nil
	}
	e := *protocol.AsError(err)
	switch {
	case e.Code == protocol.NotFound && e.Message == noSandbox:
		e.Message += ": " + sandbox
	case e.Code == protocol.NotFound && e.Message == noExec:
		e.Message += ": " + exec
	default:
		return err
	}
	return &e
}

func errState(verb string, b *protocol.Sandbox) error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInvalidState, "cannot %s a sandbox that is %s",
		verb, b.State)
}
