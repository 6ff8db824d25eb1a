package decide

import (
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// Signalled returns the event with the outcome of a pending signal of a running exec.
func Signalled(st *protocol.State, id string, signal uint64, result control.SignalResult) []protocol.Event {
	x := st.Execs[id]
	if x == nil || x.State != protocol.ExecStateRunning {
		return nil
	}
	for _, g := range x.PendingSignals() {
		if g.Sequence == signal {
			return []protocol.Event{signalEvent(id, g, result)}
		}
	}
	return nil
}

// LastSignals returns the events with the outcomes of the pending signals of an exec that has ended. results has the
// answers of the supervisor. asked is the sequence up to which the worker knew the history when it asked. A later
// signal was never sent to the supervisor. A signal without an answer gets no event: the end of the exec makes its
// outcome unknown.
func LastSignals(st *protocol.State, id string, results map[uint64]control.SignalResult, asked uint64) (
	events []protocol.Event) {
	x := st.Execs[id]
	if x == nil || x.State != protocol.ExecStateRunning {
		return nil
	}
	for _, g := range x.PendingSignals() {
		result, answered := results[g.Sequence]
		switch {
		case answered:
			events = append(events, signalEvent(id, g, result))
		case g.Sequence > asked:
			events = append(events, signalEvent(id, g, control.SignalResult{Outcome: protocol.SignalNotDelivered,
				Error: protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal,
					"the exec ended before it got the signal")}))
		}
	}
	return events
}

func signalEvent(id string, g protocol.ExecSignal, result control.SignalResult) protocol.Event {
	e := protocol.Event{Kind: protocol.ExecSignalled, Request: g.Request, Actor: g.Actor, Error: result.Error,
		Exec: &protocol.ExecDetails{ID: id, Signal: &protocol.SignalDetails{Number: g.Number, Tree: g.Tree, Of: g.Sequence,
			Outcome: result.Outcome, Processes: result.Processes}}}
	if e.Exec.Signal.Outcome == protocol.SignalPending { // a defect of the supervisor
		e.Exec.Signal.Outcome = protocol.SignalUnknown
	}
	if result.Error != nil {
		e.Reason = result.Error.Reason
	}
	return e
}
