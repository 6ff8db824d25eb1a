package worker

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/output"
)

// primaryRun is the newest that a supervisor said of the sandbox's own command.
type primaryRun struct {
	control.Primary
	boot string // of the supervisor
}

// ended says whether the command was started, or was to be, and does not run.
func (r *primaryRun) ended() bool { return !r.Running && (r.LastExit != nil || r.Error != nil) }

// events are what the history lacks of the command's starts and ends. It is pure. A run that began and
// ended while the worker was away is left out; the number of restarts shows it.
func (r *primaryRun) events(known *protocol.PrimaryStatus) []protocol.Event {
	if known == nil || known.Boot != r.boot {
		known = &protocol.PrimaryStatus{State: protocol.PrimaryHasEnded, Restarts: -1}
	}
	started := protocol.Event{Kind: protocol.PrimaryStarted, Primary: &protocol.PrimaryDetails{Boot: r.boot, Restarts: r.Restarts}}
	open := known.State == protocol.PrimaryRunning
	switch {
	case known.Restarts > r.Restarts: // an old word
	case r.Running && known.Restarts == r.Restarts:
	case r.Running:
		if before := r.Restarts - 1; open || known.Restarts < before {
			return []protocol.Event{r.endOf(before), started}
		}
		return []protocol.Event{started}
	case !r.ended() || known.Restarts == r.Restarts && !open:
	case r.Error != nil || known.Restarts == r.Restarts:
		return []protocol.Event{r.endOf(r.Restarts)}
	default:
		return []protocol.Event{started, r.endOf(r.Restarts)}
	}
	return nil
}

// endOf is the event of the end that was heard last, of the run with this number.
func (r *primaryRun) endOf(run int) protocol.Event {
	e := protocol.Event{Kind: protocol.PrimaryEnded, Error: r.Error,
		Primary: &protocol.PrimaryDetails{Boot: r.boot, Restarts: run, ExitCode: r.LastExit, OOMKills: r.OOMKills}}
	switch {
	case r.Error != nil:
		e.Reason = r.Error.Reason
	case outOfMemory(&r.Primary):
		e.Reason = protocol.ReasonOOMKilled
	}
	return e
}

// steady says how long to wait until it is known whether the command runs, 0 where it has run for
// steadyFor. The error says why it cannot be started, or how it ended before that, in a run that began
// at from or later. It is pure.
func (r *primaryRun) steady(spec *protocol.SandboxSpec, from, now time.Time) (time.Duration, *protocol.Error) {
	switch {
	case r.Error != nil:
		return 0, r.unstartable()
	case r.Running:
		return max(0, steadyFor-now.Sub(r.Since)), nil
	case r.LastExit == nil || r.Began.Before(from): // it will be started, or started again
		return judgePeriod, nil
	case !r.Began.IsZero() && r.Since.Sub(r.Began) >= steadyFor:
		return 0, nil
	case outOfMemory(&r.Primary):
		why := protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled, "the sandbox's command ran out of memory (%s) as it started", spec.Memory)
		why.Field = "spec.memory"
		return 0, why
	}
	why := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCommandExited,
		"the sandbox's command ended at once, with exit code %d; it is meant to run as long as the sandbox does: "+
			"leave it out for a sandbox that waits for execs, and run what ends by itself as an exec", *r.LastExit)
	why.Field = "spec.command"
	return 0, why
}

// unstartable is the error of a command that cannot be started.
func (r *primaryRun) unstartable() *protocol.Error {
	why := *r.Error
	why.Message = "the sandbox's command cannot be started: " + why.Message
	if r.LastExit != nil {
		why.Message += protocol.Errorf("", "", " (exit code %d)", *r.LastExit).Message
	}
	if why.Field == "" {
		why.Field = "spec.command"
	}
	return &why
}

// ownRun is what was last heard of the sandbox's own command, also after its container ended.
func (s *sandbox) ownRun() primaryRun {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached != nil {
		return s.attached.own
	}
	return s.lastOwn
}

// primaryEvents are what the history lacks of the command's starts and ends.
func (s *sandbox) primaryEvents(b *protocol.Sandbox) []protocol.Event {
	if len(b.Spec.Command) == 0 {
		return nil
	}
	run := s.ownRun()
	return run.events(b.Primary)
}

// tellPrimary appends what the history lacks of the command's starts and ends.
func (s *sandbox) tellPrimary(ctx context.Context, b *protocol.Sandbox) error {
	if len(s.primaryEvents(b)) == 0 {
		return nil
	}
	s.w.cfg.Probe("before-primary-told")
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		if st.Sandbox.State != protocol.StateReady {
			return nil
		}
		return s.primaryEvents(&st.Sandbox)
	})
	return ignore(err, errSuperseded)
}

// primarySteady waits until the sandbox's own command, if it has one, has run for steadyFor, and fails
// when it cannot be started, or ended before. What it did before from does not count: required services
// were not ready, which it may need.
func (s *sandbox) primarySteady(ctx context.Context, b *protocol.Sandbox, a *attachment, from time.Time) error {
	if len(b.Spec.Command) == 0 {
		return nil
	}
	for {
		run := s.ownRun()
		wait, why := run.steady(&b.Spec, from, time.Now())
		if why != nil {
			return a.withOutput(ctx, why)
		}
		if wait == 0 {
			return nil
		}
		if a.heard.WaitFor(ctx, min(wait, judgePeriod)); ctx.Err() != nil {
			return protocol.Errorf(protocol.DeadlineExceeded, "", "the sandbox's command does not run")
		}
		if err := s.stillRuns(ctx, a); err != nil {
			return err
		}
	}
}

// withOutput adds the end of the command's output to an error, and publishes what is left of it.
func (a *attachment) withOutput(ctx context.Context, why *protocol.Error) *protocol.Error {
	if a.output == nil {
		return why
	}
	a.endOutput(ctx)
	told := *why
	told.Message += quoted(a.output.Last())
	return &told
}

// follow publishes what the sandbox's own command prints until the attachment is closed, or endOutput.
func (a *attachment) follow(log *output.CommandLog) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	a.output, a.stopOutput = log, func() { stop(); <-done }
	go func() {
		defer close(done)
		log.Run(ctx)
	}()
}

// endOutput publishes, for a while, the last that the sandbox's own command printed.
func (a *attachment) endOutput(ctx context.Context) {
	if a.output == nil {
		return
	}
	a.stopOutput()
	a.output.Finish(ctx, func() bool { return false })
}

// awaitOwnEnd waits for a while until the supervisor has said how the command ended that it was told to end.
func (s *sandbox) awaitOwnEnd(ctx context.Context, a *attachment) {
	ctx, cancel := context.WithTimeout(ctx, output.FinishWithin)
	defer cancel()
	runs := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return a.own.Running
	}
	for runs() && a.link.Up() && backoff.Sleep(ctx, output.FinishPoll) {
	}
}
