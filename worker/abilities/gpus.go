package abilities

import (
	"strconv"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
)

// GPUs records which sandbox holds which of the host's GPUs. GPUs are identified by their indices. A container has the
// GPUs that its label names, from its creation to its removal. A stopped sandbox does not hold the GPUs of its
// container: other sandboxes may get them, but only when no other GPUs are free. To resume, the stopped sandbox must
// wait until its GPUs are free again.
type GPUs struct {
	mu    sync.Mutex
	n     int
	of    map[protocol.SandboxKey]gpuUse
	known bool // Found was called in this tenure
}

type gpuUse struct {
	ids     []string
	resting bool // the sandbox's container has the GPUs, but does not run
}

// NewGPUs returns the record of a host with n GPUs.
func NewGPUs(n int) *GPUs { return &GPUs{n: n, of: map[protocol.SandboxKey]gpuUse{}} }

// Take gives a sandbox n GPUs, or all GPUs of the host if n is negative. A sandbox that already holds n GPUs from an
// earlier attempt keeps them. Error: resource_exhausted.
func (g *GPUs) Take(k protocol.SandboxKey, n int) ([]string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n < 0 {
		n = g.n
	}
	u := g.of[k]
	switch {
	case n == 0 || len(u.ids) == n && !u.resting:
		return u.ids, nil
	case !g.known:
		return nil, errGPUsUnknown
	}
	held, rested := g.others(k)
	var free, last []string
	for i := range g.n {
		switch id := strconv.Itoa(i); {
		case held[id]:
		case rested[id]:
			last = append(last, id)
		default:
			free = append(free, id)
		}
	}
	if free = append(free, last...); len(free) < n {
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonNoGPU,
			"%d of the host's %d GPUs are free, %d are wanted", len(free), g.n, n)
	}
	g.of[k] = gpuUse{ids: free[:n]}
	return free[:n], nil
}

// Claim records that a sandbox holds the GPUs of its container. Error: resource_exhausted if another sandbox holds one
// of these GPUs.
func (g *GPUs) Claim(k protocol.SandboxKey, ids []string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case len(ids) == 0:
		return nil
	case !g.known:
		return errGPUsUnknown
	}
	held, _ := g.others(k)
	for _, id := range ids {
		if held[id] {
			return protocol.Errorf(
				protocol.ResourceExhausted,
				protocol.ReasonNoGPU,
				"another sandbox now uses GPU %s of this sandbox's container",
				id,
			)
		}
	}
	g.of[k] = gpuUse{ids: ids}
	return nil
}

var errGPUsUnknown = protocol.Errorf(
	protocol.ResourceExhausted,
	protocol.ReasonNoGPU,
	"the worker does not know yet which GPUs of the host are free",
)

// others returns the GPUs of all other sandboxes: in held the GPUs of sandboxes that run, and in rested the GPUs in the
// containers of stopped sandboxes. The caller holds the lock.
func (g *GPUs) others(k protocol.SandboxKey) (held, rested map[string]bool) {
	held, rested = map[string]bool{}, map[string]bool{}
	for other, u := range g.of {
		for _, id := range u.ids {
			if other != k && u.resting {
				rested[id] = true
			} else if other != k {
				held[id] = true
			}
		}
	}
	return held, rested
}

// Rest records that a sandbox is stopped and therefore no longer holds the GPUs of its container.
func (g *GPUs) Rest(k protocol.SandboxKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if u, has := g.of[k]; has {
		u.resting = true
		g.of[k] = u
	}
}

// Release frees the GPUs of a sandbox that has no container.
func (g *GPUs) Release(k protocol.SandboxKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.of, k)
}

// Found records that sandboxes hold the GPUs of their containers. Several of these sandboxes may hold the same GPU,
// because it is not known yet which of them are stopped; their goroutines will call Rest.
func (g *GPUs) Found(of map[protocol.SandboxKey][]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, ids := range of {
		g.of[k] = gpuUse{ids: ids}
	}
	g.known = true
}

// Forget forgets everything at the end of a tenure, because the next holder of the host's lock may start and stop
// sandboxes.
func (g *GPUs) Forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.of)
	g.known = false
}
