package protocol

import (
	"slices"
	"time"
)

// SignalOutcome says what happened to a signal that a client sent to an exec.
type SignalOutcome string

// The outcomes.
const (
	SignalPending      SignalOutcome = ""              // the worker has not said yet what happened
	SignalDelivered    SignalOutcome = "delivered"     // at least one process got the signal
	SignalNotDelivered SignalOutcome = "not_delivered" // no process got the signal; the error says why
	SignalUnknown      SignalOutcome = "unknown"       // the exec ended, and nobody knows whether a process got the signal
)

// ExecSignal is a signal that a client sent to an exec.
type ExecSignal struct {
	Sequence    uint64        `json:"seq"` // sequence of its exec.signal_requested
	Request     string        `json:"request"`
	Actor       string        `json:"actor,omitempty"` // user who sent it
	Number      int           `json:"number"`          // as on Linux
	Tree        bool          `json:"tree,omitempty"`  // sent to all processes of the exec, not only to the main process
	RequestedAt time.Time     `json:"requested_at,omitempty,omitzero"`
	Outcome     SignalOutcome `json:"outcome,omitempty"`
	Processes   int           `json:"processes,omitempty"` // how many processes got the signal
	Error       *Error        `json:"error,omitempty"`     // why no process, or not every process, got the signal
	OutcomeAt   time.Time     `json:"outcome_at,omitempty,omitzero"`
}

// SignalDetails holds the details of the events exec.signal_requested and exec.signalled.
type SignalDetails struct {
	Number    int           `json:"number"`
	Tree      bool          `json:"tree,omitempty"`
	Of        uint64        `json:"of,omitempty"` // in exec.signalled: sequence of the exec.signal_requested
	Outcome   SignalOutcome `json:"outcome,omitempty"`
	Processes int           `json:"processes,omitempty"`
}

const (
	// KeptSignals is how many signals an exec remembers. The history has all of them. No more than KeptSignals signals of
	// an exec may be pending.
	KeptSignals = 16

	// MaxSignals is how many signals the execs of one sandbox may get within [SignalWindow]. It bounds how fast signals
	// make a history longer.
	MaxSignals = 120

	// SignalWindow is the time in which the execs of one sandbox may get [MaxSignals] signals.
	SignalWindow = time.Minute
)

// PendingSignals returns the exec's signals without an outcome, oldest first.
func (x *Exec) PendingSignals() (pending []ExecSignal) {
	for _, g := range x.Signals {
		if g.Outcome == SignalPending {
			pending = append(pending, g)
		}
	}
	return pending
}

// SignalOf returns the signal that a request sent to the exec, or nil if the exec does not remember it.
func (x *Exec) SignalOf(request string) *ExecSignal {
	for i := range x.Signals {
		if x.Signals[i].Request == request {
			return &x.Signals[i]
		}
	}
	return nil
}

// RecentSignals returns how many signals the sandbox's execs got within [SignalWindow] before now.
func (s *State) RecentSignals(now time.Time) (n int) {
	since := now.Add(-SignalWindow).Unix()
	for b := len(s.Uses) - 1; b >= 0; b-- {
		for _, u := range slices.Backward(s.Uses[b]) {
			switch {
			case u.At < since:
				return n
			case u.Verb == VerbSignal:
				n++
			}
		}
	}
	return n
}

// signal records a requested signal.
func (x *Exec) signal(e *Event) error {
	d := e.Exec.Signal
	if d == nil || !isSignal(d.Number) {
		return Errorf(FailedPrecondition, ReasonUndecodable, "%s without a signal", e.Kind)
	}
	if len(x.PendingSignals()) >= KeptSignals {
		return Errorf(FailedPrecondition, ReasonInvalidState, "exec %s has too many pending signals", x.ID)
	}
	x.keepSignal(ExecSignal{Sequence: e.Sequence, Request: e.Request, Actor: e.Actor, Number: d.Number, Tree: d.Tree,
		RequestedAt: e.Time})
	return nil
}

// signalled records the outcome of a signal. If the exec does not remember the signal, because only a part of the
// history was read, signalled adds it.
func (x *Exec) signalled(e *Event) error {
	d := e.Exec.Signal
	if d == nil || d.Outcome == SignalPending {
		return Errorf(FailedPrecondition, ReasonUndecodable, "%s without an outcome", e.Kind)
	}
	i := slices.IndexFunc(x.Signals, func(g ExecSignal) bool { return g.Sequence == d.Of })
	if i >= 0 && x.Signals[i].Outcome != SignalPending {
		return Errorf(FailedPrecondition, ReasonInvalidState, "the signal of event %d has an outcome already", d.Of)
	}
	done := ExecSignal{Sequence: d.Of, Request: e.Request, Actor: e.Actor, Number: d.Number, Tree: d.Tree}
	if i >= 0 {
		done = x.Signals[i]
	}
	done.Outcome, done.Processes, done.Error, done.OutcomeAt = d.Outcome, d.Processes, e.Error, e.Time
	if i < 0 {
		x.keepSignal(done)
		return nil
	}
	x.Signals = slices.Clone(x.Signals)
	x.Signals[i] = done
	return nil
}

// keepSignal adds a signal, and drops the oldest one with an outcome if there are too many.
func (x *Exec) keepSignal(g ExecSignal) {
	kept := slices.Clone(x.Signals)
	if len(kept) >= KeptSignals {
		oldest := slices.IndexFunc(kept, func(g ExecSignal) bool { return g.Outcome != SignalPending })
		if oldest >= 0 {
			kept = slices.Delete(kept, oldest, oldest+1)
		}
	}
	x.Signals = append(slices.Clip(kept), g)
}

// closeSignals gives the pending signals of an exec that ended the outcome unknown.
func (x *Exec) closeSignals(e *Event) {
	if len(x.PendingSignals()) == 0 {
		return
	}
	x.Signals = slices.Clone(x.Signals)
	for i := range x.Signals {
		if g := &x.Signals[i]; g.Outcome == SignalPending {
			g.Outcome, g.OutcomeAt = SignalUnknown, e.Time
		}
	}
}
