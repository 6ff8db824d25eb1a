package supervise

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

// Every request waits for a connection, and is sent again on the next one when the connection ends
// before the answer: all of them may be repeated. When ctx ends first the error is unavailable,
// and it is not known whether the request was carried out.

// Start starts an exec, once: the same id again answers with the exec as it is then. A command that
// cannot be started is not an error but a result, in the status and in OnEnd. Errors:
// failed_precondition with "interrupted" when it was meant for an earlier boot of the supervisor, or
// was started and forgotten, with "sandbox_stopping" after StopAll; "lease_lost" when [Config.Lease]
// no longer allowed it as it was written, or the supervisor read it too late; resource_exhausted;
// unavailable.
//
// OnEnd may be called before Start returns.
func (l *Link) Start(ctx context.Context, start control.Start) (control.ExecStatus, error) {
	reply, err := l.ask(ctx, control.Command{Start: &start})
	if err != nil || reply.Status == nil {
		return control.ExecStatus{}, err
	}
	return *reply.Status, nil
}

// Cancel ends an exec: TERM to its process tree, KILL after grace. It returns when the supervisor
// knows; the end comes by OnEnd. It does nothing for an ended exec; a second call may shorten the
// grace. Errors: not_found for an exec that this boot does not know; unavailable.
func (l *Link) Cancel(ctx context.Context, execID string, grace time.Duration) error {
	_, err := l.ask(ctx, control.Command{Cancel: &control.Cancel{ID: execID, Grace: grace}})
	return err
}

// Forget removes ended execs from the supervisor's memory and their directories from disk. Running
// and unknown ones are passed over.
func (l *Link) Forget(ctx context.Context, execIDs ...string) error {
	_, err := l.ask(ctx, control.Command{Forget: &control.Forget{IDs: execIDs}})
	return err
}

// StopAll ends every exec and the primary command, TERM, grace, KILL, and returns when nothing of
// them is left; OnEnd has each exec's result as Cancelled. Nothing starts in this boot afterwards.
// Errors: "lease_lost", as of Start; unavailable.
func (l *Link) StopAll(ctx context.Context, grace time.Duration) error {
	_, err := l.ask(ctx, control.Command{StopAll: &control.StopAll{Grace: grace}})
	return err
}

func (l *Link) ask(ctx context.Context, c control.Command) (*control.Reply, error) {
	for {
		s, _, err := l.session(ctx)
		if err != nil {
			return nil, err
		}
		reply, lost, err := s.ask(ctx, c)
		switch {
		case err != nil:
			return nil, err
		case lost:
			if err := l.gone(ctx, s); err != nil {
				return nil, err
			}
		case reply.Error != nil:
			return nil, reply.Error
		default:
			return reply, nil
		}
	}
}

// gone waits until an ended session is no longer the current one.
func (l *Link) gone(ctx context.Context, s *session) error {
	for {
		l.mu.Lock()
		current, changed := l.current, l.changed
		l.mu.Unlock()
		if current != s {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return unavailable(ctx)
		}
	}
}
