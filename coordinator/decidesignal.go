package coordinator

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// decideSignal sends a signal to a running exec. The event only asks for the delivery: the worker appends the outcome.
// A repeated request changes nothing, whatever happened to its signal.
func decideSignal(s *protocol.State, request string, r *protocol.Request, now time.Time) ([]protocol.Event, error) {
	if !s.Exists() {
		return nil, errNoSandbox()
	}
	number, err := protocol.ParseSignal("signal", r.Signal)
	if err != nil {
		return nil, err
	}
	x := s.Execs[r.ExecID]
	repeated, err := repeats(s, request, protocol.VerbSignal, r.ExecID)
	switch {
	case err != nil:
		return nil, err
	case repeated:
		return nil, sameSignal(x, request, number, r.Tree)
	case x == nil:
		return nil, errNoExec()
	case x.State.Terminal():
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal,
			"the exec has ended: it is %s", x.State)
	case x.State == protocol.ExecStateAccepted:
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecNotRunning,
			"the exec has not started yet: send the signal again when it is running, or cancel the exec")
	case len(x.PendingSignals()) >= protocol.KeptSignals:
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManySignals,
			"%d signals to the exec have no outcome yet: try again when its worker has delivered them", protocol.KeptSignals)
	case s.RecentSignals(now) >= protocol.MaxSignals:
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManySignals,
			"the execs of the sandbox got %d signals in the last %s: try again later", protocol.MaxSignals,
			protocol.SignalWindow)
	}
	return []protocol.Event{{Kind: protocol.ExecSignalRequested, Request: request,
		Exec: &protocol.ExecDetails{ID: x.ID, Signal: &protocol.SignalDetails{Number: number, Tree: r.Tree}}}}, nil
}

// sameSignal returns an error if a request id was used for another signal to the same exec.
func sameSignal(x *protocol.Exec, request string, number int, tree bool) error {
	if x == nil {
		return nil
	}
	if g := x.SignalOf(request); g != nil && (g.Number != number || g.Tree != tree) {
		return errRequestUsed(request, &protocol.Use{ID: request, Verb: protocol.VerbSignal, Exec: x.ID})
	}
	return nil
}
