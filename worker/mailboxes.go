package worker

import (
	"context"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/sandbox"
)

// mailboxes are the sandboxes that have a goroutine.
type mailboxes struct {
	create func(k protocol.SandboxKey) *sandbox.Sandbox

	mu      sync.Mutex
	byKey   map[protocol.SandboxKey]*sandbox.Sandbox
	running sync.WaitGroup
}

// deliver gives something to a sandbox: to a new goroutine if the present one has just ended.
func (m *mailboxes) deliver(ctx context.Context, k protocol.SandboxKey, give func(*sandbox.Sandbox) bool) {
	for ctx.Err() == nil && !give(m.start(ctx, k)) {
	}
}

// start returns a sandbox, and starts its goroutine if it does not run.
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

// get returns a sandbox that has a goroutine, nil if it has none.
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

// processes are the first processes of the containers that are connected, with the names of their sandboxes.
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

// await waits until all goroutines have ended. Their context has ended.
func (m *mailboxes) await() {
	m.running.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.byKey)
}
