package sdk

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// lookupTimeout is the time limit of one attempt to read the effect of a request.
const lookupTimeout = 2 * time.Second

// lookUpUntil waits for the answer to a stored request. At growing intervals it also looks for the effect of the
// request, because only the answer may have been lost. It returns true if it has found the effect or if ctx has ended.
// It returns false at the deadline, and when a copy of the request was refused because the queue is full. In mode
// submitForever, each interim answer sets a new deadline, maxResend after the answer.
func (s *submission) lookUpUntil(ctx context.Context, deadline time.Time) (done bool) {
	for interval := firstLookup; ; interval *= 2 {
		select {
		case <-ctx.Done():
			return true
		case <-s.full:
			return false
		case <-time.After(min(interval, time.Until(deadline))):
		}
		if reply := s.lookUp(ctx); reply != nil {
			s.found <- reply
			return true
		}
		if w := s.waiting.Load(); w != nil && s.mode == submitForever && time.Since(w.at) < maxResend {
			deadline = w.at.Add(maxResend)
		}
		if !time.Now().Before(deadline) {
			return false
		}
	}
}

// lookUp asks the read service for the effect of the request. It returns nil if there is no effect yet.
func (s *submission) lookUp(ctx context.Context) *protocol.Reply {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	r := &s.request
	// Look for the extension first, so that the sandbox read afterwards includes the extension.
	extended := r.Verb == protocol.VerbExtend && s.hasExtended(ctx)
	q, endpoint := protocol.Query{Sandbox: r.Sandbox}, protocol.EndpointGet
	if r.Verb == protocol.VerbExec || r.Verb == protocol.VerbCancel || r.Verb == protocol.VerbSignal {
		q.Exec, endpoint = r.Payload.ExecID, protocol.EndpointExec
	}
	reply, err := s.client.reads.Query(ctx, endpoint, q)
	if err != nil || reply.Sandbox == nil && reply.Exec == nil {
		return nil
	}
	switch r.Verb {
	case protocol.VerbCreate, protocol.VerbExec:
		if isOurs(reply, r) {
			return reply
		}
		return &protocol.Reply{Error: protocol.Errorf(protocol.AlreadyExists, "",
			"%s: another request has used the id", r.Verb)}
	case protocol.VerbExtend: // only the history shows which request extended a sandbox
		if extended {
			return reply
		}
	default:
		if isDone(reply, r) {
			return reply
		}
	}
	return nil
}

// isDone reports whether a sandbox or exec has reached the state that the request asks for, or is changing to that
// state.
func isDone(reply *protocol.Reply, r *Request) bool {
	switch r.Verb {
	case protocol.VerbCancel:
		return reply.Exec.Cancelling || reply.Exec.State.Terminal()
	case protocol.VerbSignal: // an exec that has ended may not remember the signal, so a coordinator must answer
		return reply.Exec.SignalOf(r.ID) != nil
	case protocol.VerbStop:
		return reply.Sandbox.Desired == protocol.StateStopped
	case protocol.VerbResume:
		return reply.Sandbox.Desired == protocol.StateReady
	case protocol.VerbDelete:
		return reply.Sandbox.Desired == protocol.StateDeleted
	}
	return false
}

// isOurs reports whether this request made the sandbox or exec with its id. A request with the same id may have had a
// different sandbox spec or exec spec.
func isOurs(reply *protocol.Reply, r *Request) bool {
	if r.Verb == protocol.VerbCreate {
		b := reply.Sandbox // compare the spec that was accepted: the sandbox's own spec may include defaults
		return b.Request == r.ID && b.Name == r.Payload.Name &&
			spec.Says(*b.AcceptedSpec().WithoutValues(), *r.Payload.Sandbox.WithoutValues())
	}
	wanted, found := *r.Payload.Exec.WithoutValues(), *reply.Exec.Spec.WithoutValues()
	wanted.Resolve()
	wanted.Stdin, found.Stdin = nil, nil // the fleet does not keep stdin after the end of the exec
	return reply.Exec.Request == r.ID && bytes.Equal(protocol.Encode(&wanted), protocol.Encode(&found))
}

// hasExtended reports whether the history holds the extension that this request asks for. If the handle does not know a
// record to start from, hasExtended returns false instead of reading the whole history. The request is then sent again,
// and a coordinator answers it.
func (s *submission) hasExtended(ctx context.Context) bool {
	if s.request.after == 0 {
		return false
	}
	batches, err := s.client.history(ctx, s.request.Sandbox, s.request.after)
	return err == nil && slices.ContainsFunc(batches, func(b *protocol.Batch) bool {
		return slices.ContainsFunc(b.Events, func(e protocol.Event) bool {
			return e.Kind == protocol.SandboxExtended && e.Request == s.request.ID
		})
	})
}
