package sandbox

import (
	"cmp"
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// teardown stops or removes a sandbox.
type teardown struct {
	s *Sandbox
	b *protocol.Sandbox
}

// stop ends the execs, stops the containers without removing them, and appends sandbox.stopped.
func (t *teardown) stop(ctx context.Context) error {
	s, b := t.s, t.b
	if err := t.endAll(ctx); err != nil {
		return err
	}
	if id := s.local.container.ID; id != "" {
		s.host.Probe("before-container-stop")
		if err := s.host.Engine.StopContainer(ctx, id, time.Second); err != nil {
			return err
		}
		s.host.Probe("after-container-stop")
	}
	if err := s.services.stop(ctx, b); err != nil {
		return err
	}
	if err := t.finishExecs(ctx); err != nil {
		return err
	}
	if err := s.diskStop.forget(b.Generation); err != nil {
		return err
	}
	s.host.Probe("before-stopped")
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		return decide.Stopped(st, s.conn.ownRun())
	})
	s.host.Probe("after-stopped")
	return err
}

// halt stops containers that should not run, but does not remove them.
func (t *teardown) halt(ctx context.Context) error {
	s := t.s
	if id := s.local.container.ID; id != "" {
		if err := s.host.Engine.StopContainer(ctx, id, t.b.Spec.Grace.Std()); err != nil {
			return err
		}
	}
	s.conn.detach()
	return s.services.stop(ctx, t.b)
}

// endAll tells the supervisors to end the execs, the sandbox's own command and the services. A process first gets the
// signal TERM, and after the grace period KILL. endAll then waits until the events that end the execs are appended. If
// a supervisor does not answer, endAll returns without an error, because the processes end later, when the container is
// stopped.
func (t *teardown) endAll(ctx context.Context) error {
	s, grace := t.s, t.b.Spec.Grace.Std()
	s.services.end()
	p := s.conn.get()
	if p != nil && !p.EndAll(ctx, grace) {
		return ctx.Err()
	}
	if !s.services.endAll(ctx, grace) {
		return ctx.Err()
	}
	if p == nil {
		return nil
	}
	p.awaitEnd(ctx)
	return s.execs.AwaitEnds(ctx, grace, false)
}

// finishExecs disconnects from a container that has ended, and waits until the events that end its execs are appended.
// If the worker was restarted during the stop, some of the execs have no goroutine yet. finishExecs starts these
// goroutines, which read the results from disk.
func (t *teardown) finishExecs(ctx context.Context) error {
	s, grace := t.s, t.b.Spec.Grace.Std()
	s.conn.detach()
	if err := s.execs.AwaitEnds(ctx, grace, false); err != nil {
		return err
	}
	s.local.Container = decide.ContainerExited
	s.execs.StartAfterEnd(ctx)
	return s.execs.AwaitEnds(ctx, grace, false)
}

// hookMargin is the time for connecting to the supervisor and for reading a hook's result. It is added to the hook's
// timeout.
const hookMargin = 10 * time.Second

// runOnDelete runs the on_delete hook of a running sandbox once, and appends the hook's outcome. The execs keep
// running. The sandbox is deleted even if the hook fails.
func (t *teardown) runOnDelete(ctx context.Context) error {
	s, b, h := t.s, t.b, t.b.Spec.OnDelete
	if h == nil || b.OnDelete != "" || b.ReadyAt.IsZero() || s.local.Container != decide.ContainerRunning {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, h.Timeout.Std()+hookMargin)
	defer cancel()
	e := protocol.Event{Kind: protocol.SandboxHook, Details: &protocol.SandboxDetails{Phase: "on_delete"}}
	var err error
	if s.conn.get() == nil { // the worker was restarted and is not connected yet
		_, err = (&starter{s, b}).again(bounded)
	}
	if err == nil {
		result, hookErr := s.conn.runHook(bounded, "on_delete", h)
		e.Details.ExitCode, e.Details.Output, e.Error, err = result.ExitCode, result.Output, result.Error, hookErr
	}
	if ctx.Err() != nil || err != nil && protocol.AsError(err).Reason == protocol.ReasonLeaseLost {
		return cmp.Or(ctx.Err(), err) // the next worker runs the hook, or reads its outcome from the supervisor
	}
	if err != nil {
		e.Error = protocol.Errorf(protocol.Unavailable, protocol.ReasonHookFailed,
			"the outcome of the hook is not known: %v", err)
	}
	if e.Error != nil {
		e.Reason = e.Error.Reason
	}
	err = s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Hook(st, e) })
	return decide.IgnoreSuperseded(err)
}
