package execs

import (
	"context"
	"errors"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// The number of a signal is the sequence of its exec.signal_requested. The supervisor sends a signal only once for each
// number, so a worker may ask again after a lost answer, and so may the next worker after a restart.

// lastSignalsWithin is how long an exec's end waits for the supervisor's answers about pending signals.
const lastSignalsWithin = 2 * time.Second

// wakeSignals makes the exec's goroutine for signals read the exec's pending signals.
func (r *execution) wakeSignals() { r.signals.Wake() }

// deliverSignals delivers the exec's signals, one after another, until ctx ends. It must be called after the supervisor
// has started the exec.
func (r *execution) deliverSignals(ctx context.Context, a *attach.Attachment) {
	for pause := backoff.New(retryFirst, signalRetryMost); ; {
		wait := time.Duration(0)
		switch err := r.deliverPending(ctx, a); {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, decide.ErrSuperseded):
			r.cfg.Logger.Warn("could not deliver a signal to an exec; retrying", "exec", r.id, "error", err)
			wait = pause.Next()
		default:
			pause.Reset()
		}
		if !r.signals.WaitFor(ctx, wait) {
			return
		}
	}
}

func (r *execution) deliverPending(ctx context.Context, a *attach.Attachment) error {
	pending, _ := r.pendingSignals()
	for _, g := range pending {
		if err := r.cfg.Fence(); err != nil {
			return err
		}
		r.cfg.Probe("before-signal")
		result, err := r.sendSignal(ctx, a, g)
		if err != nil {
			return err
		}
		r.cfg.Probe("after-signal")
		err = r.e.append(ctx, func(st *protocol.State) []protocol.Event {
			return decide.Signalled(st, r.id, g.Sequence, result)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pendingSignals returns the exec's signals without an outcome, and the sequence of the sandbox's last event that the
// worker knows.
func (r *execution) pendingSignals() (pending []protocol.ExecSignal, known uint64) {
	r.cfg.Log.View(func(st *protocol.State) {
		if x := st.Execs[r.id]; x != nil {
			pending = x.PendingSignals()
		}
		known = st.Sandbox.Sequence
	})
	return pending, known
}

// sendSignal asks the supervisor to send a signal, and returns what happened. An error means that another attempt may
// succeed.
func (r *execution) sendSignal(ctx context.Context, a *attach.Attachment, g protocol.ExecSignal) (
	control.SignalResult, error) {
	ctx, cancel := a.During(ctx)
	defer cancel()
	result, err := a.Link.Signal(ctx, control.Signal{ID: r.id, Number: g.Sequence, Signal: g.Number, Tree: g.Tree})
	switch why := protocol.AsError(err); {
	case err == nil:
		return result, nil
	case why.Reason == protocol.ReasonUnsupportedVersion:
		return control.SignalResult{Outcome: protocol.SignalNotDelivered, Error: protocol.Errorf(
			protocol.FailedPrecondition, protocol.ReasonUnsupported,
			"the sandbox's supervisor is too old for signals: stop the sandbox and resume it, or create it again")}, nil
	case why.Code == protocol.NotFound:
		return control.SignalResult{Outcome: protocol.SignalUnknown, Error: why}, nil
	}
	return control.SignalResult{}, err
}

// lastSignals asks the supervisor what happened to the pending signals of an exec that has ended. Signals that the
// supervisor did not get before are not delivered any more. known is the sequence of the last event that the worker
// knew when it asked. a may be nil.
func (r *execution) lastSignals(ctx context.Context, a *attach.Attachment) (
	results map[uint64]control.SignalResult, known uint64) {
	pending, known := r.pendingSignals()
	if a == nil || len(pending) == 0 {
		return nil, known
	}
	ctx, cancel := context.WithTimeout(ctx, lastSignalsWithin)
	defer cancel()
	results = map[uint64]control.SignalResult{}
	for _, g := range pending {
		result, err := r.sendSignal(ctx, a, g)
		if err != nil {
			r.cfg.Logger.Warn(
				"the outcome of a signal is unknown, because its exec has ended and the supervisor does not answer",
				"exec", r.id, "request", g.Request, "error", err)
			break
		}
		results[g.Sequence] = result
	}
	return results, known
}
