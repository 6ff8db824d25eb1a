package worker

import (
	"context"
	"errors"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/progress"
)

// createPhases are the phases of a sandbox's create, over all its tries in one generation.
type createPhases struct {
	*progress.Phases
	generation uint64
}

// phasesOf returns those of the sandbox's present generation.
func (s *sandbox) phasesOf(b *protocol.Sandbox) *progress.Phases {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phases.Phases == nil || s.phases.generation != b.Generation {
		s.phases = createPhases{progress.Begin(b.Phase), b.Generation}
	}
	return s.phases.Phases
}

// phase begins a phase of the create, unless the log no longer wants the sandbox made.
func (s *sandbox) phase(b *protocol.Sandbox, phase string) error {
	s.w.cfg.Probe("before-phase-" + phase)
	s.mu.Lock()
	over := s.superseded()
	s.mu.Unlock()
	if over {
		return errSuperseded
	}
	at := s.w.conn.Now().UTC()
	if at.Before(b.AssignedAt) { // by as much as two sides know the store's time less exactly
		at = b.AssignedAt
	}
	s.phasesOf(b).Enter(phase, at)
	s.w.cfg.Probe("after-phase-" + phase)
	return nil
}

// tellPhases tells the log how far a create is that lasts. end waits until it no longer does.
func (s *sandbox) tellPhases(ctx context.Context, b *protocol.Sandbox) (end func()) {
	lasting, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.phasesOf(b).Run(lasting, func() {
			err := s.afterPhases(ctx, b, func(*protocol.State) []protocol.Event { return nil })
			if err != nil && !errors.Is(err, errSuperseded) && ctx.Err() == nil {
				s.log.Warn("the phase of a create is told later", "error", err)
			}
		})
	}()
	return func() {
		stop()
		<-ended
	}
}

// afterPhases appends what decide says, and before it, in the same message, the phases of the create that the log
// does not have yet. Where decide has nothing to say the phases alone are appended, if the sandbox still waits
// for its create.
func (s *sandbox) afterPhases(ctx context.Context, b *protocol.Sandbox, choose decide.Decision) error {
	return s.phasesOf(b).Tell(func(untold []protocol.Event) error {
		return s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
			return decide.Phases(st, untold, choose(st))
		})
	})
}

// failCreate appends that the create failed, and how far it came.
func (s *sandbox) failCreate(ctx context.Context, b *protocol.Sandbox, why *protocol.Error) error {
	s.log.Warn("the sandbox fails", "error", why)
	err := s.afterPhases(ctx, b, s.failed(why))
	if err == nil {
		s.forgetPhases()
	}
	return err
}

// forgetPhases ends the phases of a create that is over: what is pulled later is of none of them.
func (s *sandbox) forgetPhases() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phases = createPhases{}
}
