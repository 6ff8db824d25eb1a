package sdk

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// submitMode says when a submission without an answer gives up.
type submitMode int

const (
	submitBounded submitMode = iota // after giveUpAfter if the context has no deadline, else with the context
	submitForever                   // with the context only
)

const (
	firstLookup = time.Second            // how long to wait for an answer before reading what the request did
	warnAfter   = 5 * time.Second        // when to log that a request waits
	warnPause   = time.Minute            // between two such warnings of a client, at least
	retryPause  = 250 * time.Millisecond // after a failed attempt
	maxResend   = 2 * time.Minute        // between two publishes of a stored request, at most
)

// submission is one request under way. It runs beside its caller, because what the request asks for may be done before
// the request itself is acknowledged.
type submission struct {
	client  *Client
	request Request
	mode    submitMode
	waiting atomic.Pointer[waiting] // the latest interim answer
	refused atomic.Pointer[Error]   // why the latest attempt to store the request failed

	replies <-chan *protocol.Reply // from the inbox: any number of interim answers, then the outcome; see isOutcome
	found   chan *protocol.Reply   // the outcome, if only its answer was lost
	failed  chan error
	stop    func()
}

// waiting is why a stored request is not decided yet.
type waiting struct {
	why *Error
	at  time.Time
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

// ask submits a request and waits for its outcome.
func (c *Client) ask(ctx context.Context, r Request, mode submitMode) (*protocol.Reply, error) {
	sub := c.submit(ctx, r, mode)
	defer sub.stop()
	return sub.wait(ctx)
}

// wait returns the outcome. An outcome that is an error is returned as the error.
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

// isOutcome says whether a reply is the outcome. An interim reply says why the request waits, which isOutcome notes.
func (s *submission) isOutcome(reply *protocol.Reply) bool {
	if reply.Waiting == nil {
		return true
	}
	s.waiting.Store(&waiting{why: reply.Waiting, at: time.Now()})
	return false
}

// whyWaiting is why the fleet has not decided the request, nil if it did not say.
func (s *submission) whyWaiting() *Error {
	if w := s.waiting.Load(); w != nil {
		return w.why
	}
	return s.client.status.waiting()
}

// explain adds to the error of a call that gave up why the fleet has not decided its request.
func (s *submission) explain(err error) error {
	why := s.whyWaiting()
	if why == nil || !isContextEnd(err) {
		return err
	}
	typed := *protocol.AsError(err)
	typed.Reason = why.Reason
	typed.Message += ": the request is stored and will be decided; it waits: " + why.Message
	return &typedError{&typed, err}
}

// check returns the error that an outcome is or, if it lacks what its request must be answered with, says so. Fields
// are named as the caller's spec has them.
func (s *submission) check(reply *protocol.Reply) error {
	verb := s.request.Verb
	if reply.Error != nil {
		return protocol.WithSpecField(verb, reply.Error)
	}
	if reply.Exec != nil || reply.Sandbox != nil && verb != protocol.VerbExec {
		return nil
	}
	return protocol.Errorf(protocol.Internal, "", "the answer to %s %s lacks what was asked for", verb, s.request.Sandbox)
}

// run publishes the request until it is answered, refused, given up, or its effect is found.
func (s *submission) run(ctx context.Context, inbox string, payload []byte) {
	c := s.client
	if err := c.status.refusal(s.request.Verb); err != nil {
		s.refuse(ctx, err)
		return
	}
	giveUp := time.Now().Add(c.giveUpAfter())
	warn := time.AfterFunc(warnAfter, s.warnWaiting)
	defer warn.Stop()
	for patience := c.requestTimeout; ; {
		ends := time.Now().Add(patience)
		if s.mode == submitBounded && ends.After(giveUp) {
			ends = giveUp
		}
		err := s.publish(ctx, inbox, payload)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && (!isTransient(err) || isFinal(err)):
			s.failed <- err
			return
		case err != nil:
			if !backoff.Sleep(ctx, retryPause) {
				return
			}
		case s.lookUpUntil(ctx, ends):
			return
		default: // the request is stored; another copy only asks for a lost answer
			patience = max(c.requestTimeout, min(2*patience, maxResend))
		}
		if s.mode == submitBounded && !time.Now().Before(giveUp) {
			s.failed <- protocol.Errorf(protocol.DeadlineExceeded, "",
				"%s %s: no answer within %s; it is not known whether request %s was carried out",
				s.request.Verb, s.request.Sandbox, c.giveUpAfter(), s.request.ID)
			return
		}
	}
}

// refuse ends a request that is not worth storing, unless it repeats one that was carried out.
func (s *submission) refuse(ctx context.Context, err error) {
	if reply := s.lookUp(ctx); reply != nil {
		s.found <- reply
		return
	}
	s.failed <- err
}

// publish stores the request, or another copy of it.
func (s *submission) publish(ctx context.Context, inbox string, payload []byte) error {
	c := s.client
	ctx, cancel := context.WithTimeout(ctx, c.requestTimeout)
	defer cancel()
	err := c.conn.Submit(ctx, c.tenant, s.request.Verb, s.request.Sandbox, s.request.ID, inbox, payload)
	s.refused.Store(protocol.AsError(err))
	return err
}

// warnWaiting logs that the request waits, and why, at most once per warnPause for all requests of the client.
func (s *submission) warnWaiting() {
	c := s.client
	last, now := c.warned.Load(), time.Now().UnixNano()
	if last != 0 && now-last < int64(warnPause) || !c.warned.CompareAndSwap(last, now) {
		return
	}
	why := s.whyWaiting()
	if why == nil {
		why = s.refused.Load()
	}
	if why == nil {
		why = protocol.Errorf(protocol.Unavailable, "", "no coordinator answers")
	}
	c.log.Warn("waiting for an answer", "verb", s.request.Verb, "sandbox", s.request.Sandbox, "error", why)
}
