package sdk

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// submitMode says when a submission gives up waiting for an answer.
type submitMode int

const (
	submitBounded submitMode = iota // gives up when the context ends or, if it has no deadline, after giveUpAfter
	submitForever                   // gives up when the context ends
)

const (
	firstLookup = time.Second            // how long to wait for an answer before looking for the effect of the request
	warnAfter   = 5 * time.Second        // when to log that a request waits
	warnPause   = time.Minute            // minimum time between two such warnings of one client
	retryPause  = 250 * time.Millisecond // how long to wait after a failed attempt
	maxResend   = 2 * time.Minute        // maximum time between two copies of a stored request
	maxFull     = 10 * time.Second       // maximum pause after a copy was refused because the queue is full
)

// submission is one request that is being sent. It runs in its own goroutine, because the effect of a request may
// arrive before the answer.
type submission struct {
	client  *Client
	request Request
	mode    submitMode
	waiting atomic.Pointer[waiting] // the latest interim answer
	refused atomic.Pointer[Error]   // why the latest copy was not stored or not accepted
	stored  atomic.Int64            // how many copies were stored and not refused because the queue is full

	replies <-chan *protocol.Reply // any number of interim answers, then the outcome; see isOutcome
	full    chan struct{}          // gets a value when a stored copy was refused because the queue is full
	found   chan *protocol.Reply   // the outcome, read from the history because only the answer was lost
	failed  chan error
	stop    func()
}

// waiting holds the reason why a stored request is not decided yet.
type waiting struct {
	why *Error
	at  time.Time
}

// submit sends a request. The caller must call stop.
func (c *Client) submit(ctx context.Context, r Request, mode submitMode) *submission {
	inbox, replies, forget := c.answers.Expect(r.ID)
	running, cancel := context.WithCancel(ctx)
	s := &submission{client: c, request: r, mode: mode, replies: replies, full: make(chan struct{}, 1),
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

// wait returns the outcome: the reply or, if the outcome is an error, that error.
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

// isOutcome reports whether a reply is the outcome. Otherwise the reply is an interim answer, which says why the
// request waits or why a copy of the request was not accepted; isOutcome stores it.
func (s *submission) isOutcome(reply *protocol.Reply) bool {
	switch {
	case !reply.Interim():
		return true
	case reply.Waiting != nil:
		s.waiting.Store(&waiting{why: reply.Waiting, at: time.Now()})
	default:
		s.refused.Store(reply.Error)
		s.stored.Add(-1)
		select {
		case s.full <- struct{}{}:
		default: // run has not sent another copy since an earlier refusal
		}
	}
	return false
}

// notAccepted returns why no copy of the request was accepted. It returns nil if the queue may hold a copy.
func (s *submission) notAccepted() *Error {
	if why := s.refused.Load(); s.stored.Load() <= 0 && isQueueFull(why) {
		return why
	}
	return nil
}

// whyWaiting returns why the fleet has not decided the request. It returns nil if the fleet gave no reason.
func (s *submission) whyWaiting() *Error {
	if w := s.waiting.Load(); w != nil {
		return w.why
	}
	return s.client.status.waiting()
}

// explain adds a reason to the error of a call that gave up: why the fleet has not decided the request.
func (s *submission) explain(err error) error {
	why, state := s.whyWaiting(), "the request is stored and will be decided; it waits: "
	refused := s.refused.Load()
	switch {
	case s.notAccepted() != nil:
		why, state = refused, ""
	case refused != nil && !isContextEnd(refused):
		state = "the last attempt to store the request failed: "
		if why == nil {
			why = refused
		}
	}
	if why == nil || !isContextEnd(err) {
		return err
	}
	typed := *protocol.AsError(err)
	typed.Reason = why.Reason
	typed.Message += ": " + state + why.Message
	return &typedError{&typed, err}
}

// check returns the error of an outcome. The error names fields as the caller's spec and options do. An outcome without
// the sandbox or exec is an internal error.
func (s *submission) check(reply *protocol.Reply) error {
	verb := s.request.Verb
	if reply.Error != nil {
		return protocol.WithSpecField(verb, withIDField(reply.Error))
	}
	if reply.Exec != nil || reply.Sandbox != nil && verb != protocol.VerbExec {
		return nil
	}
	return protocol.Errorf(protocol.Internal, "", "the answer to %s %s contains no sandbox or exec", verb,
		s.request.Sandbox)
}

// withIDField sets the field of the error for an id that was used before. Coordinators leave this field empty.
func withIDField(e *Error) *Error {
	if e.Code != protocol.AlreadyExists || e.Field != "" {
		return e
	}
	named := *e
	switch e.Reason {
	case "":
		named.Field = "id"
	case protocol.ReasonRequestUsed:
		named.Field = "request"
	}
	return &named
}

// run publishes the request repeatedly. It ends when an answer arrives, the effect of the request is found, an error
// ends the submission, or the submission gives up.
func (s *submission) run(ctx context.Context, inbox string, payload []byte) {
	c := s.client
	if err := c.status.refusal(s.request.Verb); err != nil {
		s.refuse(ctx, err)
		return
	}
	giveUp := time.Now().Add(c.giveUpAfter())
	warn := time.AfterFunc(warnAfter, s.warnWaiting)
	defer warn.Stop()
	full := backoff.New(retryPause, maxFull)
	for patience := c.requestTimeout; ; {
		ends := time.Now().Add(patience)
		if s.mode == submitBounded && ends.After(giveUp) {
			ends = giveUp
		}
		err := s.publish(ctx, inbox, payload)
		if err == nil && s.lookUpUntil(ctx, ends) {
			return
		}
		switch {
		case ctx.Err() != nil:
			return
		case isQueueFull(s.refused.Load()):
			pause := full.Next()
			if !backoff.Sleep(ctx, pause/2+rand.N(pause/2)) { // many clients may have been refused at the same moment
				return
			}
		case err != nil && (!isTransient(err) || isFinal(err)):
			s.failed <- err
			return
		case err != nil:
			if why := c.status.refusal(s.request.Verb); why != nil { // coordinators know why nothing is stored
				s.refuse(ctx, why)
				return
			}
			if !backoff.Sleep(ctx, retryPause) {
				return
			}
		default: // the request is stored; another copy only makes a coordinator repeat a lost answer
			patience = max(c.requestTimeout, min(2*patience, maxResend))
		}
		if s.mode == submitBounded && !time.Now().Before(giveUp) {
			s.failed <- s.gaveUp()
			return
		}
	}
}

// gaveUp returns the error of a submission that gave up.
func (s *submission) gaveUp() error {
	if why := s.notAccepted(); why != nil {
		return why
	}
	return protocol.Errorf(protocol.DeadlineExceeded, "",
		"%s %s: no answer within %s; it is not known whether request %s was carried out",
		s.request.Verb, s.request.Sandbox, s.client.giveUpAfter(), s.request.ID)
}

// refuse ends the submission with err before the request is stored. If an earlier copy of the request was carried out,
// the submission ends with the outcome of that copy instead.
func (s *submission) refuse(ctx context.Context, err error) {
	if reply := s.lookUp(ctx); reply != nil {
		s.found <- reply
		return
	}
	s.failed <- err
}

// publish stores the request, or another copy of the request.
func (s *submission) publish(ctx context.Context, inbox string, payload []byte) error {
	c := s.client
	ctx, cancel := context.WithTimeout(ctx, c.requestTimeout)
	defer cancel()
	s.stored.Add(1) // the request counts as stored until the queue says otherwise
	s.refused.Store(nil)
	select {
	case <-s.full: // an earlier copy was refused
	default:
	}
	err := c.conn.Submit(ctx, c.tenant, s.request.Verb, s.request.Sandbox, s.request.ID, inbox, payload)
	if err == nil { // the answer may already have been received
		return nil
	}
	why := protocol.AsError(err)
	s.refused.Store(why)
	if isQueueFull(why) {
		s.stored.Add(-1)
	}
	return err
}

// warnWaiting logs that the request is waiting, and why, at most once per warnPause for all requests of the client.
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
	c.log.Warn("a request is still waiting for an answer", "verb", s.request.Verb, "sandbox", s.request.Sandbox,
		"error", why)
}
