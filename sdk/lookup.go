package sdk

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// lookupTimeout bounds one read of what a request did.
const lookupTimeout = 2 * time.Second

// lookUpUntil reads at growing intervals whether the request was decided and only its answer lost. It returns false
// once ends has passed. While the fleet reports that the request waits, it extends ends.
func (s *submission) lookUpUntil(ctx context.Context, ends time.Time) (done bool) {
	for interval := firstLookup; ; interval *= 2 {
		if !backoff.Sleep(ctx, min(interval, time.Until(ends))) {
			return true
		}
		if reply := s.lookUp(ctx); reply != nil {
			s.found <- reply
			return true
		}
		if w := s.waiting.Load(); w != nil && s.mode == submitForever && time.Since(w.at) < maxResend {
			ends = w.at.Add(maxResend)
		}
		if !time.Now().Before(ends) {
			return false
		}
	}
}

// lookUp asks the read service what the request did, and returns nil if it has done nothing yet.
func (s *submission) lookUp(ctx context.Context) *protocol.Reply {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	r := &s.request
	// An extension is looked for first, so that the handle read afterwards includes it.
	extended := r.Verb == protocol.VerbExtend && s.hasExtended(ctx)
	q, endpoint := protocol.Query{Sandbox: r.Sandbox}, protocol.EndpointGet
	if r.Verb == protocol.VerbExec || r.Verb == protocol.VerbCancel {
		q.Exec, endpoint = r.Payload.ExecID, protocol.EndpointExec
	}
	reply, err := s.client.conn.Query(ctx, s.client.tenant, endpoint, &q)
	if err != nil || reply.Sandbox == nil && reply.Exec == nil {
		return nil
	}
	switch r.Verb {
	case protocol.VerbCreate, protocol.VerbExec:
		if isOurs(reply, r) {
			return reply
		}
		taken := protocol.Errorf(protocol.AlreadyExists, "", "%s: the id was taken by another request", r.Verb)
		return &protocol.Reply{Error: taken}
	case protocol.VerbExtend: // the sandbox does not show which request extended it
		if extended {
			return reply
		}
	default:
		if isDone(reply, r.Verb) {
			return reply
		}
	}
	return nil
}

// isDone says whether a sandbox or exec is, or is becoming, what a request of this verb asks for.
func isDone(reply *protocol.Reply, verb string) bool {
	switch verb {
	case protocol.VerbCancel:
		return reply.Exec.Cancelling || reply.Exec.State.Terminal()
	case protocol.VerbStop:
		return reply.Sandbox.Desired == protocol.StateStopped
	case protocol.VerbResume:
		return reply.Sandbox.Desired == protocol.StateReady
	case protocol.VerbDelete:
		return reply.Sandbox.Desired == protocol.StateDeleted
	}
	return false
}

// isOurs says whether this request made the sandbox or exec that has its id. A request with the same id may have made
// something else.
func isOurs(reply *protocol.Reply, r *Request) bool {
	if r.Verb == protocol.VerbCreate {
		b := reply.Sandbox // its spec may include defaults
		return b.Request == r.ID && b.Name == r.Payload.Name && spec.Says(*b.AcceptedSpec(), *r.Payload.Sandbox)
	}
	wanted, found := *r.Payload.Exec, reply.Exec.Spec
	wanted.Resolve()
	wanted.Stdin, found.Stdin = nil, nil // not kept once the exec has ended
	return reply.Exec.Request == r.ID && bytes.Equal(protocol.Encode(&wanted), protocol.Encode(&found))
}

// hasExtended says whether the history holds the requested extension. If it is not known where to start, it does not
// read the whole history: the request itself is sent again and answered.
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
