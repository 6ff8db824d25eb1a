package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// condition says whether a sandbox in this state is what is waited for. The error ends the wait:
// the state can no longer be reached without somebody's asking for it.
type condition func(state protocol.SandboxState, own *protocol.Error) (done bool, err error)

func untilReady(state protocol.SandboxState, own *protocol.Error) (bool, error) {
	switch state {
	case protocol.StateReady:
		return true, nil
	case protocol.StateStopped:
		return false, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxStopped, "the sandbox is stopped")
	}
	return false, ended(state, own)
}

func untilStopped(state protocol.SandboxState, own *protocol.Error) (bool, error) {
	return state == protocol.StateStopped, ended(state, own)
}

func untilDeleted(state protocol.SandboxState, _ *protocol.Error) (bool, error) {
	return state == protocol.StateDeleted, nil
}

// ended is the error of a sandbox that will never again be ready or stopped, nil for others.
func ended(state protocol.SandboxState, own *protocol.Error) error {
	switch state {
	case protocol.StateFailed:
		if own != nil {
			return own
		}
		return protocol.Errorf(protocol.Internal, protocol.ReasonSandboxFailed, "the sandbox failed and does not say why")
	case protocol.StateDeleting, protocol.StateDeleted:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxDeleted, "the sandbox is %s", state)
	}
	return nil
}

// change sends a request about the sandbox and waits for the condition, where the call waits.
func (s *Sandbox) change(ctx context.Context, verb string, call *call, payload protocol.Request, until condition) error {
	mode := findForever
	if call.accepted {
		mode = findBounded
	}
	id, err := s.find(ctx, mode)
	if err != nil {
		return err
	}
	request := Request{Verb: verb, Sandbox: id, ID: call.request, Payload: payload, after: s.Info().Record}
	if call.accepted {
		reply, err := s.client.ask(ctx, request, submitBounded)
		if err == nil {
			s.learn(reply.Sandbox)
		}
		return err
	}
	// Listening begins before the request is sent, so that what it causes is not missed.
	f, err := s.client.feed(id)
	if err != nil {
		return failed(ctx, err, verb)
	}
	defer f.release()
	w := f.follow(0, 0)
	defer w.close()
	reply, err := s.client.ask(ctx, request, submitForever)
	if err != nil {
		return err
	}
	s.learn(reply.Sandbox)
	if !reply.Changed { // what is waited for may have happened before the listening began
		if isPast(verb, reply.Sandbox) {
			return nil
		}
		w.mayHaveMissed()
	}
	return s.await(ctx, w, until)
}

// isPast says whether a repeated stop or resume was done, and its opposite asked for since. A resume can
// be asked for only when the stop is done, and the other way round.
func isPast(verb string, b *protocol.Sandbox) bool {
	switch verb {
	case protocol.VerbStop:
		return b.Desired == protocol.StateReady
	case protocol.VerbResume:
		return b.Desired == protocol.StateStopped
	}
	return false
}

func (c *Client) ask(ctx context.Context, r Request, mode submitMode) (*protocol.Reply, error) {
	sub := c.submit(ctx, r, mode)
	defer sub.stop()
	return sub.wait(ctx)
}

// await waits for the condition, from what the handle knows on.
func (s *Sandbox) await(ctx context.Context, w *follower, until condition) error {
	info := s.Info()
	if done, err := until(info.State, info.Error); done || err != nil {
		return err
	}
	w.last, w.record = info.Sequence, info.Record
	w.feed.knows(w.last, w.record)
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
			s.refreshTo(ctx, e)
			return err
		}
	}
}

// refreshTo reads the sandbox as it is at an event or later. It waits for a coordinator where none
// answers; where ctx ends meanwhile, the handle takes over what the event itself says.
func (s *Sandbox) refreshTo(ctx context.Context, e *protocol.Event) {
	for {
		reply, err := s.client.Query(ctx, protocol.EndpointGet, protocol.Query{Sandbox: s.ID(), MinSequence: e.Sequence})
		if err == nil {
			s.learn(reply.Sandbox)
			return
		}
		if !isTransient(err) || !pause(ctx, retryPause) {
			break
		}
	}
	info := s.Info()
	info.State, info.Sequence, info.Reason, info.Error = e.State, e.Sequence, e.Reason, e.Error
	info.Record = e.Record - 1 // more events of the same message may follow this one
	s.learn(&info)
}

// WaitReady waits until the sandbox is ready. Errors: the sandbox's own where it failed;
// failed_precondition with reason sandbox_stopped or sandbox_deleted where it is stopped or gone.
// The wait begins with what the handle last saw: nothing that came after it is missed.
func (s *Sandbox) WaitReady(ctx context.Context) error { return s.wait(ctx, untilReady) }

// WaitStopped waits until the sandbox is stopped. Errors as of [Sandbox.WaitReady].
func (s *Sandbox) WaitStopped(ctx context.Context) error { return s.wait(ctx, untilStopped) }

// WaitDeleted waits until the sandbox is deleted.
func (s *Sandbox) WaitDeleted(ctx context.Context) error { return s.wait(ctx, untilDeleted) }

func (s *Sandbox) wait(ctx context.Context, until condition) error {
	if s.Info().Sequence == 0 {
		if err := s.Refresh(ctx); err != nil {
			return err
		}
	}
	f, err := s.client.feed(s.ID())
	if err != nil {
		return failed(ctx, err, "wait")
	}
	defer f.release()
	w := f.follow(0, 0)
	defer w.close()
	w.mayHaveMissed()
	return s.await(ctx, w, until)
}
