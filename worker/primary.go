package worker

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/output"
)

// ownRun is what was last heard of the sandbox's own command, also after its container ended.
func (s *sandbox) ownRun() *decide.PrimaryRun {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached != nil {
		own := s.attached.own
		return &own
	}
	last := s.lastOwn
	return &last
}

// tellPrimary appends what the history lacks of the command's starts and ends.
func (s *sandbox) tellPrimary(ctx context.Context, b *protocol.Sandbox) error {
	if len(decide.PrimaryEvents(b, s.ownRun())) == 0 {
		return nil
	}
	s.w.cfg.Probe("before-primary-told")
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Primary(st, s.ownRun()) })
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
		wait, why := run.Steady(&b.Spec, from, time.Now())
		if why != nil {
			return a.withOutput(ctx, why)
		}
		if wait == 0 {
			return nil
		}
		if a.heard.WaitFor(ctx, min(wait, decide.CheckPeriod)); ctx.Err() != nil {
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
