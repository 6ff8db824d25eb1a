package sandbox

import (
	"context"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// connection holds the connection to the primary container's supervisor. Each start of the container has a new
// connection.
type connection struct {
	s *Sandbox

	mu      sync.Mutex
	primary *primary          // nil: no supervisor is connected
	lastRun decide.PrimaryRun // last report on the sandbox's own command before the container ended
	changed chan struct{}     // closed and replaced when primary changes
}

func newConnection(s *Sandbox) *connection { return &connection{s: s, changed: make(chan struct{})} }

// attach makes p the present primary, and wakes the hooks that wait for a connection.
func (c *connection) attach(p *primary) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.primary = p
	close(c.changed)
	c.changed = make(chan struct{})
}

// detach disconnects from a container that has ended, and publishes the rest of the output of the sandbox's own
// command. The results of the container's execs are in files that the supervisor wrote.
func (c *connection) detach() {
	c.mu.Lock()
	p := c.primary
	c.primary = nil
	if p != nil {
		c.lastRun = p.lastReport()
	}
	c.mu.Unlock()
	if p != nil {
		p.close()
		p.finishOutput(context.Background())
	}
}

// get returns the connection to the present start of the container, or nil if there is no connection.
func (c *connection) get() *primary {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.primary
}

// attachment returns the connection to the container's supervisor, or nil if there is no connection.
func (c *connection) attachment() *attach.Attachment {
	if p := c.get(); p != nil {
		return p.Attachment
	}
	return nil
}

// attachmentOf returns the connection to the supervisor of a service's container, or of the primary container if
// service is "". It returns nil if there is no connection.
func (c *connection) attachmentOf(service string) *attach.Attachment {
	if service == "" {
		return c.attachment()
	}
	if v := c.s.services.get(service); v != nil {
		a, _, _ := v.Container()
		return a
	}
	return nil
}

// await waits until there is a connection to the container's supervisor, and returns it.
func (c *connection) await(ctx context.Context) (*attach.Attachment, error) {
	for {
		c.mu.Lock()
		p, changed := c.primary, c.changed
		c.mu.Unlock()
		if p != nil {
			return p.Attachment, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// runHook runs a hook in the primary container, once there is a connection to its supervisor.
func (c *connection) runHook(ctx context.Context, name string, h *protocol.Hook) (attach.HookResult, error) {
	a, err := c.await(ctx)
	if err != nil {
		return attach.HookResult{}, err
	}
	return a.Hook(ctx, name, h)
}

// ownRun returns the newest report on the sandbox's own command, even after the container has ended.
func (c *connection) ownRun() *decide.PrimaryRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	run := c.lastRun
	if c.primary != nil {
		run = c.primary.lastReport()
	}
	return &run
}

// check appends events for the starts and ends of a ready sandbox's own command that the log lacks. It fails the
// sandbox if the command is in a crash loop.
func (c *connection) check(ctx context.Context) error {
	s := c.s
	st, _ := s.journal.State()
	b := &st.Sandbox
	if b.State != protocol.StateReady {
		return nil
	}
	if len(decide.PrimaryEvents(b, s.conn.ownRun())) > 0 {
		s.host.Probe("before-primary-told")
		err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
			return decide.Primary(st, s.conn.ownRun())
		})
		if decide.IgnoreSuperseded(err) != nil {
			return err
		}
	}
	p := s.conn.get()
	if p == nil {
		return nil
	}
	why := p.crashLoop(b.Spec.Memory)
	if why == nil {
		return nil
	}
	if err := s.host.Fence(); err != nil {
		return err
	}
	ending := teardown{s, b}
	if err := ending.endAll(ctx); err != nil {
		return err
	}
	if p := s.conn.get(); p != nil {
		why = p.withOutput(ctx, why)
	}
	err := s.fail(ctx, b, why)
	s.wake.Wake()
	return err
}
