package sdk

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
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
	firstLook  = time.Second            // after this long without an answer, look what became of the request
	sayAfter   = 5 * time.Second        // and after this long, say that the request waits
	sayPause   = time.Minute            // between two such words of a client, at least
	retryPause = 250 * time.Millisecond // after a publish that failed
	resendMost = 2 * time.Minute        // between two publishes of a request that is stored, at most
)

// submission is one request on its way. It runs beside its waiter, because what the request asks
// for may be done before the request's own acknowledgement is back.
type submission struct {
	client  *Client
	request Request
	mode    submitMode
	waiting atomic.Pointer[interim]        // the newest answer that was no outcome
	refused atomic.Pointer[protocol.Error] // why it was not stored when that was last tried

	replies <-chan *protocol.Reply // the answer, from the inbox, after those that are none: see [submission.isOutcome]
	found   chan *protocol.Reply   // the answer, found by looking
	failed  chan error
	stop    func()
}

// interim is why a request that is stored is not decided yet.
type interim struct {
	why  *protocol.Error
	said time.Time
}

// submit sends a request. The caller must call stop.
func (c *Client) submit(ctx context.Context, r Request, mode submitMode) *submission {
	inbox, replies, forget := c.answers.Expect(r.ID)
	running, cancel := context.WithCancel(ctx)
	s := &submission{client: c, request: r, mode: mode, replies: replies,
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
	for {
		var reply *protocol.Reply
		select {
		case reply = <-s.replies:
		case reply = <-s.found:
		case err := <-s.failed:
			return nil, s.explain(failed(ctx, err, s.request.Verb))
		case <-ctx.Done():
			return nil, s.explain(ctxEnded(ctx.Err(), s.request.Verb+" "+s.request.Sandbox))
		}
		if !s.isOutcome(reply) {
			continue
		}
		if err := s.check(reply); err != nil {
			return nil, err
		}
		return reply, nil
	}
}

// isOutcome says whether a reply is the answer. If not, it says why the request waits, and that is kept.
func (s *submission) isOutcome(reply *protocol.Reply) bool {
	if reply.Waiting == nil {
		return true
	}
	s.waiting.Store(&interim{why: reply.Waiting, said: time.Now()})
	return false
}

// explain adds to the error of a call that gave up why the fleet did not decide its request.
func (s *submission) explain(err error) error {
	why := s.client.status.waits()
	if i := s.waiting.Load(); i != nil {
		why = i.why
	}
	if why == nil || !isOver(err) {
		return err
	}
	typed := *protocol.AsError(err)
	typed.Reason = why.Reason
	typed.Message += ": the request is stored and will be decided; it waits: " + why.Message
	return &failure{&typed, err}
}

// check returns the error of an answer, or that it lacks what its request is answered with. The caller gave a spec.
func (s *submission) check(reply *protocol.Reply) error {
	switch {
	case reply.Error != nil:
		return protocol.InSpec(s.request.Verb, reply.Error)
	case s.request.Verb == protocol.VerbExec && reply.Exec == nil, s.request.Verb != protocol.VerbExec && reply.Sandbox == nil && reply.Exec == nil:
		return protocol.Errorf(protocol.Internal, "", "the answer to %s %s holds no handle", s.request.Verb, s.request.Sandbox)
	}
	return nil
}

// run publishes until the request is answered, found, refused or given up.
func (s *submission) run(ctx context.Context, inbox string, payload []byte) {
	c := s.client
	if err := c.status.refuses(s.request.Verb); err != nil {
		if reply := s.look(ctx); reply != nil { // it is no new one
			s.found <- reply
		} else {
			s.failed <- err
		}
		return
	}
	within := RequestTries * c.requestTimeout
	giveUp := time.Now().Add(within)
	say := time.AfterFunc(sayAfter, s.sayWaits)
	defer say.Stop()
	for patience := c.requestTimeout; ; {
		ends := time.Now().Add(patience)
		if s.mode == submitBounded && ends.After(giveUp) {
			ends = giveUp
		}
		bounded, cancel := context.WithDeadline(ctx, time.Now().Add(c.requestTimeout))
		err := c.conn.Submit(bounded, c.tenant, s.request.Verb, s.request.Sandbox, s.request.ID, inbox, payload)
		cancel()
		s.refused.Store(protocol.AsError(err))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && (!isTransient(err) || isFinal(err)):
			s.failed <- err
			return
		case err != nil:
			if !pause(ctx, retryPause) {
				return
			}
		case s.lookUntil(ctx, ends):
			return
		default: // it is stored: another copy only asks for an answer that was lost
			patience = max(c.requestTimeout, min(2*patience, resendMost))
		}
		if s.mode == submitBounded && !time.Now().Before(giveUp) {
			s.failed <- protocol.Errorf(protocol.DeadlineExceeded, "",
				"%s %s: no answer within %s; it is not known whether request %s was carried out",
				s.request.Verb, s.request.Sandbox, within, s.request.ID)
			return
		}
	}
}

// sayWaits logs that the request waits, and why, once a while for all requests of the client.
func (s *submission) sayWaits() {
	c := s.client
	last, now := c.complained.Load(), time.Now().UnixNano()
	if last != 0 && now-last < int64(sayPause) || !c.complained.CompareAndSwap(last, now) {
		return
	}
	why := s.client.status.waits()
	if i := s.waiting.Load(); i != nil {
		why = i.why
	} else if why == nil {
		why = s.refused.Load()
	}
	if why == nil {
		why = protocol.Errorf(protocol.Unavailable, "", "no coordinator answers")
	}
	c.log.Warn("waiting for an answer", "verb", s.request.Verb, "sandbox", s.request.Sandbox, "error", why)
}

// lookUntil looks at growing intervals whether the request was decided and only its answer lost.
// done is false when the time is over. It is longer while the fleet says that the request waits.
func (s *submission) lookUntil(ctx context.Context, ends time.Time) (done bool) {
	for interval := firstLook; ; interval *= 2 {
		if !pause(ctx, min(interval, time.Until(ends))) {
			return true
		}
		if reply := s.look(ctx); reply != nil {
			s.found <- reply
			return true
		}
		if i := s.waiting.Load(); i != nil && s.mode == submitForever && time.Since(i.said) < resendMost {
			ends = i.said.Add(resendMost)
		}
		if !time.Now().Before(ends) {
			return false
		}
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
		return theirsOrOurs(reply, reply.Sandbox.Request == r.ID && reply.Sandbox.Name == r.Payload.Name && spec.Says(*reply.Sandbox.AcceptedSpec(), *r.Payload.Sandbox), r)
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
		// The handle does not show whose extension it has.
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

// extended says whether the history holds the extension that was asked for. Where it is not known what came
// before, the whole of it is not read for that: the request itself is sent again, and answered.
func (s *submission) extended(ctx context.Context) bool {
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
