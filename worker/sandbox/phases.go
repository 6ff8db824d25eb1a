package sandbox

import (
	"context"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/progress"
)

// createPhases keeps the phases of the sandbox's create for all tries of the create in one generation.
type createPhases struct {
	s *Sandbox

	mu         sync.Mutex
	present    *progress.Phases // nil: no create runs
	generation uint64
}

// of returns the phases of the create in the sandbox's present generation.
func (c *createPhases) of(b *protocol.Sandbox) *progress.Phases {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.present == nil || c.generation != b.Generation {
		c.present, c.generation = progress.Begin(b.Phase), b.Generation
	}
	return c.present
}

// enter begins a phase of the create. It returns decide.ErrSuperseded if the log no longer wants the create.
func (c *createPhases) enter(b *protocol.Sandbox, phase string) error {
	s := c.s
	s.host.Probe("before-phase-" + phase)
	s.mu.Lock()
	superseded := s.superseded()
	s.mu.Unlock()
	if superseded {
		return decide.ErrSuperseded
	}
	at := s.host.Now().UTC()
	if at.Before(b.AssignedAt) { // the clocks of two connections to the store differ a little
		at = b.AssignedAt
	}
	c.of(b).Enter(phase, at)
	s.host.Probe("after-phase-" + phase)
	return nil
}

// run appends the phases of a create that takes long, until the caller calls the returned function stop.
func (c *createPhases) run(ctx context.Context, b *protocol.Sandbox) (stop func()) {
	running, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.of(b).Run(running, func() {
			err := c.append(ctx, b, func(*protocol.State) []protocol.Event { return nil })
			if decide.IgnoreSuperseded(err) != nil && ctx.Err() == nil {
				c.s.log.Warn("could not append the phase of a create; retrying", "error", err)
			}
		})
	}()
	return func() {
		cancel()
		<-ended
	}
}

// append appends those phases of the create that are missing from the log, followed in the same message by the events
// that choose returns. If choose returns no events, the phases are appended only while the sandbox waits for its
// create.
func (c *createPhases) append(ctx context.Context, b *protocol.Sandbox, choose decide.Decision) error {
	return c.of(b).Append(func(unreported []protocol.Event) error {
		return c.s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
			return decide.Phases(st, unreported, choose(st))
		})
	})
}

// fail appends the phases that the create has entered, and then the event sandbox.failed.
func (c *createPhases) fail(ctx context.Context, b *protocol.Sandbox, why *protocol.Error) error {
	c.s.log.Warn("could not create the sandbox; the sandbox failed", "error", why)
	err := c.append(ctx, b, func(st *protocol.State) []protocol.Event { return decide.Failed(st, c.s.conn.ownRun(), why) })
	if err == nil {
		c.forget()
	}
	return err
}

// forget drops the phases of a create that has ended. Later image pulls belong to no phase.
func (c *createPhases) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.present = nil
}
