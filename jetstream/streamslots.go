package jetstream

import (
	"cmp"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// StreamLimits limits the operations and streams of a worker that are open at a time. Zero values mean the defaults.
type StreamLimits struct {
	Sandbox int // most operations and streams of one sandbox; default 64
	Tenant  int // most operations and streams of one tenant; default 256
	Worker  int // most operations and streams of the worker; default 512

	// Memory is how many bytes all streams together may use for windows and for unacknowledged bytes. Each stream may use
	// 32 KiB in addition. When Memory is used up, streams get smaller windows. Default 12 MiB.
	Memory int64

	// Ping is the pause after which a silent client is pinged. After three unanswered pings, its stream is lost. Default
	// 15 s.
	Ping time.Duration
}

// Defaults of [StreamLimits].
const (
	streamsOfSandbox = 64
	streamsOfTenant  = 256
	streamsOfWorker  = 512
	streamsMemory    = 12 << 20 // bytes
)

// streamSlots counts the open operations and streams.
type streamSlots struct {
	limits StreamLimits

	mu        sync.Mutex
	all       int
	tenants   map[string]int
	sandboxes map[string]int // by tenant and sandbox
}

func newStreamSlots(l StreamLimits) *streamSlots {
	return &streamSlots{
		limits: StreamLimits{
			Sandbox: cmp.Or(l.Sandbox, streamsOfSandbox), Tenant: cmp.Or(l.Tenant, streamsOfTenant),
			Worker: cmp.Or(l.Worker, streamsOfWorker), Ping: l.Ping,
			Memory: cmp.Or(l.Memory, streamsMemory),
		},
		tenants: map[string]int{}, sandboxes: map[string]int{},
	}
}

// take counts one more operation of a sandbox, until release is called. Error: resource_exhausted with reason
// too_many_streams, which names the limit.
func (s *streamSlots) take(tenant, sandbox string) (release func(), err error) {
	key := tenant + "." + sandbox
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range []struct {
		of         string
		open, most int
	}{
		{"the sandbox", s.sandboxes[key], s.limits.Sandbox},
		{"the tenant", s.tenants[tenant], s.limits.Tenant},
		{"the worker", s.all, s.limits.Worker},
	} {
		if l.open >= l.most {
			return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyStreams,
				"%s already has %d open streams and operations, which is its limit: end one, or try again later", l.of, l.most)
		}
	}
	s.all++
	s.tenants[tenant]++
	s.sandboxes[key]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		lower(s.tenants, tenant)
		lower(s.sandboxes, key)
	}, nil
}

func lower(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}
