package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// WithTree sends a signal to all processes of the exec, as they are when the signal arrives, instead of its main
// process only.
func WithTree() SignalOption { return option(func(s *settings) { s.tree = true }) }

// Signal sends a signal to the main process of a running exec, or to all of its processes with [WithTree], and waits
// until the worker of the sandbox's host has said what happened. signal is a name, such as INT or SIGTERM, or a number,
// as on Linux. The exec continues unless the signal ends it. To end an exec for certain, use [Exec.Cancel].
//
// The result is nil if the request was refused. Otherwise the result has the known facts about the signal, even if
// Signal returns an error. A signal is delivered at most once: repeating the call with the same [WithRequestID] asks
// for the outcome again. The sandbox's history records who sent which signal, and the outcome. If ctx ends before the
// outcome is known, the signal may still be delivered. Without a deadline, Signal waits for [RequestTries] times the
// request timeout.
//
// Options: [WithTree], [WithRequestID]. Errors:
//   - invalid_argument with field signal
//   - not_found
//   - failed_precondition with reason exec_already_terminal if the exec has ended, exec_not_running if it has not
//     started yet, or unsupported if the sandbox's supervisor is too old
//   - resource_exhausted with reason too_many_signals
//   - unavailable with reason signal_open if the outcome is not known: the worker does not answer, or the exec ended
//     and it is not known whether the signal was delivered before
func (x *Exec) Signal(ctx context.Context, signal string, opts ...SignalOption) (*ExecSignal, error) {
	o := settingsOf(opts, SignalOption.forSignal)
	if err := o.fillIDs(); err != nil {
		return nil, err
	}
	if _, err := protocol.ParseSignal("signal", signal); err != nil {
		return nil, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, x.client.giveUpAfter())
		defer cancel()
	}
	sandbox, err := x.find(ctx, findBounded)
	if err != nil {
		return nil, err
	}
	r := Request{Verb: protocol.VerbSignal, Sandbox: sandbox, ID: *o.request,
		Payload: protocol.Request{ExecID: x.ID(), Signal: signal, Tree: o.tree}}
	var sent *ExecSignal
	err = withFollower(ctx, x.sandbox, protocol.VerbSignal, func(w *follower) (err error) {
		sent, err = x.signal(ctx, w, r)
		return err
	})
	return sent, err
}

// signal sends the request, and follows the sandbox's history until it has the outcome. The caller must have started
// the follower before.
func (x *Exec) signal(ctx context.Context, w *follower, r Request) (*ExecSignal, error) {
	reply, err := x.client.ask(ctx, r, submitBounded)
	if err != nil {
		return nil, err
	}
	x.learn(reply.Exec)
	g := reply.Exec.SignalOf(r.ID)
	if g == nil {
		return nil, signalOpen(x, "its outcome is only in the history, because the exec got more signals since")
	}
	sent := *g
	w.last, w.record = reply.Exec.Sequence, reply.Exec.Record
	w.feed.coverFrom(w.last, w.record)
	w.mayHaveMissed()
	for sent.Outcome == protocol.SignalPending {
		b, err := w.next(ctx)
		if err != nil {
			return &sent, signalOpen(x, "the worker of the sandbox's host has not answered yet; it delivers the signal when "+
				"it can, unless the exec ends before")
		}
		for i := range b.Events {
			learnOutcome(&sent, x.ID(), &b.Events[i])
		}
	}
	switch {
	case sent.Outcome == protocol.SignalUnknown:
		return &sent, signalOpen(x, "the exec ended, and nobody knows whether it got the signal before")
	case sent.Outcome == protocol.SignalNotDelivered && sent.Error != nil:
		return &sent, sent.Error
	case sent.Outcome == protocol.SignalNotDelivered:
		return &sent, protocol.Errorf(protocol.Internal, "", "the signal was not delivered, and the worker gave no reason")
	}
	return &sent, nil
}

// learnOutcome sets the outcome of a signal from an event, if the event says it.
func learnOutcome(g *ExecSignal, exec string, e *Event) {
	switch {
	case e.Exec == nil || e.Exec.ID != exec || e.Sequence <= g.Sequence || g.Outcome != protocol.SignalPending:
	case e.Kind == protocol.ExecSignalled && e.Exec.Signal != nil && e.Exec.Signal.Of == g.Sequence:
		g.Outcome, g.Processes, g.Error, g.OutcomeAt = e.Exec.Signal.Outcome, e.Exec.Signal.Processes, e.Error, e.Time
	case e.Exec.State.Terminal():
		g.Outcome, g.OutcomeAt = protocol.SignalUnknown, e.Time
	}
}

func signalOpen(x *Exec, why string) error {
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonSignalOpen,
		"it is not known whether exec %s got the signal: %s", x.ID(), why)
}
