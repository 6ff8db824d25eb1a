package worker

import (
	"context"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/sandbox"
)

// mailboxes hold the sandboxes that have a goroutine, and deliver news to them.
type mailboxes struct {
	create func(k protocol.SandboxKey) *sandbox.Sandbox

	mu      sync.Mutex
	byKey   map[protocol.SandboxKey]*sandbox.Sandbox
	running sync.WaitGroup
}

// deliver calls give, which passes news to a sandbox and returns true. If the sandbox's goroutine has just ended, give
// returns false, and deliver calls give again with a new sandbox and goroutine.
func (m *mailboxes) deliver(ctx context.Context, k protocol.SandboxKey, give func(*sandbox.Sandbox) bool) {
	for ctx.Err() == nil && !give(m.start(ctx, k)) {
	}
}

// start returns a sandbox, and starts its goroutine if none runs.
func (m *mailboxes) start(ctx context.Context, k protocol.SandboxKey) *sandbox.Sandbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.byKey[k]
	if s != nil && !s.Ended() {
		return s
	}
	s = m.create(k)
	m.byKey[k] = s
	m.running.Go(func() {
		s.Run(ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.byKey[k] == s {
			delete(m.byKey, k)
		}
	})
	return s
}

// get returns the sandbox, or nil if it has no goroutine.
func (m *mailboxes) get(k protocol.SandboxKey) *sandbox.Sandbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byKey[k]
}

func (m *mailboxes) keys() []protocol.SandboxKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := make([]protocol.SandboxKey, 0, len(m.byKey))
	for k := range m.byKey {
		keys = append(keys, k)
	}
	return keys
}

// processes returns the first process of each connected container, with the key of the container's sandbox.
func (m *mailboxes) processes() map[int]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[int]string{}
	for k, s := range m.byKey {
		for _, pid := range s.Pids() {
			found[pid] = k.String()
		}
	}
	return found
}

// await waits until the goroutines of all sandboxes have ended. The caller must have cancelled their context.
func (m *mailboxes) await() {
	m.running.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.byKey)
}
