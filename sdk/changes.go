package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// condition reports whether a sandbox has reached the state that the caller waits for. own is the error that the
// sandbox itself failed with. If the condition returns an error, the wait ends: only another request could still bring
// the sandbox to that state.
type condition func(state SandboxState, own *Error) (done bool, err error)

func untilReady(state SandboxState, own *Error) (bool, error) {
	switch state {
	case protocol.StateReady:
		return true, nil
	case protocol.StateStopped:
		return false, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxStopped, "the sandbox is stopped")
	}
	return false, endedError(state, own)
}

func untilStopped(state SandboxState, own *Error) (bool, error) {
	return state == protocol.StateStopped, endedError(state, own)
}

func untilDeleted(state SandboxState, _ *Error) (bool, error) {
	return state == protocol.StateDeleted, nil
}

// endedError returns an error if a sandbox can no longer become ready or stopped, because it has failed or is deleted
// or being deleted. For every other state it returns nil.
func endedError(state SandboxState, own *Error) error {
	switch state {
	case protocol.StateFailed:
		if own != nil {
			return own
		}
		return protocol.Errorf(protocol.Internal, protocol.ReasonSandboxFailed,
			"the sandbox failed without recording an error")
	case protocol.StateDeleting, protocol.StateDeleted:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxDeleted, "the sandbox is %s", state)
	}
	return nil
}

// change is a request to change a sandbox. The field until is the condition that ends the call's wait.
type change struct {
	sandbox  *Sandbox
	verb     string
	settings *settings
	payload  protocol.Request
	until    condition
}

// do sends the request. It returns when the sandbox meets the condition or, with acceptedOnly, when the request is
// accepted.
func (c change) do(ctx context.Context) error {
	s, mode := c.sandbox, findForever
	if c.settings.acceptedOnly {
		mode = findBounded
	}
	id, err := s.find(ctx, mode)
	if err != nil {
		return err
	}
	request := Request{Verb: c.verb, Sandbox: id, ID: *c.settings.request, Payload: c.payload, after: s.Info().Record}
	if c.settings.acceptedOnly {
		reply, err := s.client.ask(ctx, request, submitBounded)
		if err == nil {
			s.learn(reply.Sandbox)
		}
		return err
	}
	// A follower that starts after the request could miss the request's effect.
	return withFollower(ctx, s, c.verb, func(w *follower) error {
		reply, err := s.client.ask(ctx, request, submitForever)
		if err != nil {
			return err
		}
		s.learn(reply.Sandbox)
		if !reply.Changed { // the sandbox may have changed before the follower started
			if isSuperseded(c.verb, reply.Sandbox) {
				return nil
			}
			w.mayHaveMissed()
		}
		return await(ctx, s, w, c.until)
	})
}

// withFollower calls do with a new follower of the sandbox's history, and closes the follower afterwards.
func withFollower(ctx context.Context, s *Sandbox, doing string, do func(*follower) error) error {
	f, err := s.client.feed(s.ID())
	if err != nil {
		return failed(ctx, err, doing)
	}
	defer f.release()
	w := f.follow(0, 0)
	defer w.close()
	return do(w)
}

// isSuperseded reports whether a repeated stop or resume was carried out earlier and later undone by the opposite
// request. The opposite request is accepted only after the first change is done, so there is nothing to wait for.
func isSuperseded(verb string, b *SandboxInfo) bool {
	switch verb {
	case protocol.VerbStop:
		return b.Desired == protocol.StateReady
	case protocol.VerbResume:
		return b.Desired == protocol.StateStopped
	}
	return false
}

// await waits until the condition is met, starting from the state that the handle knows.
func await(ctx context.Context, s *Sandbox, w *follower, until condition) error {
	info := s.Info()
	if done, err := until(info.State, info.Error); done || err != nil {
		return err
	}
	w.last, w.record = info.Sequence, info.Record
	w.feed.coverFrom(w.last, w.record)
	for {
		b, err := w.next(ctx)
		if err != nil {
			return failed(ctx, err, "wait for sandbox "+s.ID())
		}
		for i := range b.Events {
			e := &b.Events[i]
			if e.Sequence <= info.Sequence {
				continue
			}
			done, err := until(e.State, e.Error)
			if !done && err == nil {
				continue
			}
			refreshTo(ctx, s, e)
			return err
		}
	}
}

// refreshTo updates the handle to the state at event e or later. It retries until a coordinator answers. If ctx ends
// first, the handle takes the state from the event itself.
func refreshTo(ctx context.Context, s *Sandbox, e *Event) {
	for {
		reply, err := s.client.query(ctx, protocol.EndpointGet, protocol.Query{Sandbox: s.ID(), MinSequence: e.Sequence})
		if err == nil {
			s.learn(reply.Sandbox)
			return
		}
		if !isTransient(err) || !backoff.Sleep(ctx, retryPause) {
			break
		}
	}
	info := s.Info()
	info.State, info.Sequence, info.Reason, info.Error = e.State, e.Sequence, e.Reason, e.Error
	info.Record = e.Record - 1 // read this message again: it may hold more events after e
	s.learn(&info)
}

// WaitReady waits until the sandbox is ready. It does not miss a change between the last call on this handle and this
// call. Ending ctx ends only the wait. Errors: the error that the sandbox failed with; failed_precondition with reason
// sandbox_stopped or sandbox_deleted if the sandbox is stopped, deleted or being deleted; not_found.
func (s *Sandbox) WaitReady(ctx context.Context) error { return waitUntil(ctx, s, untilReady) }

// WaitStopped waits until the sandbox is stopped. Errors and the effect of ctx are the same as for [Sandbox.WaitReady].
func (s *Sandbox) WaitStopped(ctx context.Context) error { return waitUntil(ctx, s, untilStopped) }

// WaitDeleted waits until the sandbox is deleted. Ending ctx ends only the wait. Errors: not_found if the sandbox never
// existed.
func (s *Sandbox) WaitDeleted(ctx context.Context) error { return waitUntil(ctx, s, untilDeleted) }

func waitUntil(ctx context.Context, s *Sandbox, until condition) error {
	if s.Info().Sequence == 0 {
		if err := s.Refresh(ctx); err != nil {
			return err
		}
	}
	return withFollower(ctx, s, "wait", func(w *follower) error {
		w.mayHaveMissed()
		return await(ctx, s, w, until)
	})
}
