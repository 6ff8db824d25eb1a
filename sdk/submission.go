package sdk

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// submitMode says when a submission without an answer gives up.
type submitMode int

const (
	submitBounded submitMode = iota // after RequestTries times the timeout, when the context has no deadline
	submitForever                   // with the context only
)

const (
	firstLook     = time.Second            // after this long without an answer, look what became of the request
	firstLookSoon = 100 * time.Millisecond // for an id that was given: it may have been answered before
	retryPause    = 250 * time.Millisecond // after a publish that failed
)

// submission is one request on its way. It runs beside its waiter, because what the request asks
// for may be done before the request's own acknowledgement is back.
type submission struct {
	client  *Client
	request Request
	mode    submitMode
	soon    bool // look early

	replies <-chan *protocol.Reply // the answer, from the inbox
	found   chan *protocol.Reply   // the answer, found by looking
	failed  chan error
	stop    func()
}

// submit sends a request. The caller must call stop.
func (c *Client) submit(ctx context.Context, r Request, mode submitMode, soon bool) *submission {
	inbox, replies, forget := c.answers.Expect(r.ID)
	running, cancel := context.WithCancel(ctx)
	s := &submission{client: c, request: r, mode: mode, soon: soon, replies: replies,
		found: make(chan *protocol.Reply, 1), failed: make(chan error, 1)}
	s.stop = func() { cancel(); forget() }
	if _, bounded := ctx.Deadline(); bounded {
		s.mode = submitForever
	}
	s.request.Payload.Version = protocol.Version
	payload := protocol.Encode(&s.request.Payload)
	go s.run(running, inbox, payload)
	return s
}

// wait returns the answer. An answer that is an error is returned as the error.
func (s *submission) wait(ctx context.Context) (*protocol.Reply, error) {
	var reply *protocol.Reply
	select {
	case reply = <-s.replies:
	case reply = <-s.found:
	case err := <-s.failed:
		return nil, failed(ctx, err, s.request.Verb)
	case <-ctx.Done():
		return nil, ctxEnded(ctx.Err(), s.request.Verb+" "+s.request.Sandbox)
	}
	if err := s.check(reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// check returns the error of an answer, or that it lacks what its request is answered with.
func (s *submission) check(reply *protocol.Reply) error {
	switch {
	case reply.Error != nil:
		return reply.Error
	case s.request.Verb == protocol.VerbExec && reply.Exec == nil, s.request.Verb != protocol.VerbExec && reply.Sandbox == nil && reply.Exec == nil:
		return protocol.Errorf(protocol.Internal, "", "the answer to %s %s holds no handle", s.request.Verb, s.request.Sandbox)
	}
	return nil
}

// run publishes until the request is answered, found, refused or given up.
func (s *submission) run(ctx context.Context, inbox string, payload []byte) {
	c := s.client
	within := RequestTries * c.requestTimeout
	giveUp := time.Now().Add(within)
	for {
		ends := time.Now().Add(c.requestTimeout)
		bounded, cancel := context.WithDeadline(ctx, ends)
		err := c.conn.Submit(bounded, c.tenant, s.request.Verb, s.request.Sandbox, s.request.ID, inbox, payload)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !isTransient(err):
			s.failed <- err
			return
		case err != nil:
			if !pause(ctx, retryPause) {
				return
			}
		case s.lookUntil(ctx, ends):
			return
		}
		if s.mode == submitBounded && !time.Now().Before(giveUp) {
			s.failed <- protocol.Errorf(protocol.DeadlineExceeded, "",
				"%s %s: no answer within %s; the outcome of request %s is open",
				s.request.Verb, s.request.Sandbox, within, s.request.ID)
			return
		}
	}
}

// lookUntil looks at growing intervals whether the request was decided and only its answer lost.
// done is false when the time is over.
func (s *submission) lookUntil(ctx context.Context, ends time.Time) (done bool) {
	interval := firstLook
	if s.soon {
		interval = firstLookSoon
	}
	for {
		if !pause(ctx, min(interval, time.Until(ends))) {
			return true
		}
		if reply := s.look(ctx); reply != nil {
			s.found <- reply
			return true
		}
		if !time.Now().Before(ends) {
			return false
		}
		interval *= 2
	}
}

// look asks the read service what became of the request, nil where nothing did yet.
func (s *submission) look(ctx context.Context) *protocol.Reply {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r := &s.request
	extended := r.Verb == protocol.VerbExtend && s.extended(ctx) // before the handle is read, which then shows it
	q, endpoint := protocol.Query{Sandbox: r.Sandbox}, protocol.EndpointGet
	if r.Verb == protocol.VerbExec || r.Verb == protocol.VerbCancel {
		q.Exec, endpoint = r.Payload.ExecID, protocol.EndpointExec
	}
	reply, err := s.client.conn.Query(ctx, s.client.tenant, endpoint, &q)
	if err != nil || reply.Sandbox == nil && reply.Exec == nil {
		return nil
	}
	switch r.Verb {
	case protocol.VerbCreate:
		// Defaults may lie below what was asked for.
		return theirsOrOurs(reply, reply.Sandbox.Request == r.ID && spec.Says(*reply.Sandbox.AcceptedSpec(), *r.Payload.Sandbox), r)
	case protocol.VerbExec:
		spec, found := *r.Payload.Exec, reply.Exec.Spec
		spec.Resolve()
		spec.Stdin, found.Stdin = nil, nil // not kept once the exec has ended
		return theirsOrOurs(reply, reply.Exec.Request == r.ID && sameSpec(&spec, &found), r)
	case protocol.VerbCancel:
		if reply.Exec.Cancelling || reply.Exec.State.Terminal() {
			return reply
		}
	case protocol.VerbStop:
		if reply.Sandbox.Desired == protocol.StateStopped {
			return reply
		}
	case protocol.VerbResume:
		if reply.Sandbox.Desired == protocol.StateReady {
			return reply
		}
	case protocol.VerbExtend:
		// The handle does not show whose extension it has. Sent again, the request is not decided again
		// as long as its message is known to the queue.
		if extended {
			return reply
		}
	case protocol.VerbDelete:
		if reply.Sandbox.Desired == protocol.StateDeleted {
			return reply
		}
	}
	return nil
}

// extended says whether the history holds the extension that was asked for.
func (s *submission) extended(ctx context.Context) bool {
	batches, err := s.client.history(ctx, s.request.Sandbox, 0)
	return err == nil && slices.ContainsFunc(batches, func(b *protocol.Batch) bool {
		return slices.ContainsFunc(b.Events, func(e protocol.Event) bool {
			return e.Kind == protocol.SandboxExtended && e.Request == s.request.ID
		})
	})
}

// theirsOrOurs returns what was found where this request made it; else the id is taken, also by a
// request of the same id for something else.
func theirsOrOurs(reply *protocol.Reply, ours bool, r *Request) *protocol.Reply {
	if ours {
		return reply
	}
	return &protocol.Reply{Error: protocol.Errorf(protocol.AlreadyExists, "", "%s: the id was taken by another request", r.Verb)}
}

func sameSpec(a, b any) bool { return bytes.Equal(protocol.Encode(a), protocol.Encode(b)) }

// pause waits for d or the end of ctx, and says which: false for the end of ctx.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
