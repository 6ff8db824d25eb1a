package worker

import (
	"strconv"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// gpus gives each sandbox GPUs of its own, by their indices. Those of a container are in its label, and
// stay the same for its life. A sandbox that is stopped does not hold its GPUs; they are given to others
// last, and a resume waits for them.
type gpus struct {
	mu    sync.Mutex
	n     int
	of    map[key]gpuUse
	known bool // the containers of this host were looked at in this tenure
}

type gpuUse struct {
	ids     []string
	resting bool // its container has them, and does not run
}

func newGPUs(n int) *gpus { return &gpus{n: n, of: map[key]gpuUse{}} }

// take gives a sandbox so many GPUs, all of them for a negative number: those that it has already, where
// an earlier try took them. Error: resource_exhausted.
func (g *gpus) take(k key, n int) ([]string, error) {
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
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonNoGPU, "%d of the host's %d GPUs are free, %d are wanted", len(free), g.n, n)
	}
	g.of[k] = gpuUse{ids: free[:n]}
	return free[:n], nil
}

// claim has a sandbox hold the GPUs that its container has. Error: resource_exhausted, where another
// sandbox holds one of them.
func (g *gpus) claim(k key, ids []string) error {
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
			return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonNoGPU, "GPU %s, which the sandbox had, is now another sandbox's", id)
		}
	}
	g.of[k] = gpuUse{ids: ids}
	return nil
}

var errGPUsUnknown = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonNoGPU, "which GPUs of the host are free is not known yet")

// others are the GPUs that other sandboxes hold, and those that the containers of stopped ones have. The
// caller holds the lock.
func (g *gpus) others(k key) (held, rested map[string]bool) {
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

// settle lets go of what a sandbox does not hold any more, by the log and by what the host shows.
func (g *gpus) settle(k key, b *protocol.Sandbox, hostID string, c decide.ContainerState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	u, has := g.of[k]
	switch {
	case !has, c == decide.ContainerUnknown, c == decide.ContainerRunning, holdsHost(b, hostID):
	case c == decide.ContainerAbsent:
		delete(g.of, k)
	default:
		u.resting = true
		g.of[k] = u
	}
}

// holdsHost says whether a sandbox has what it needs of this host reserved, as placement counts it.
func holdsHost(b *protocol.Sandbox, hostID string) bool {
	return b.HostID == hostID && (b.Assigned || b.State == protocol.StateDeleting)
}

// found has sandboxes hold the GPUs that their containers have, also where several have one: all but
// one of them will turn out to be stopped.
func (g *gpus) found(of map[key][]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, ids := range of {
		g.of[k] = gpuUse{ids: ids}
	}
	g.known = true
}

// forget is for the end of a tenure: whoever has the lock next may remove what is here.
func (g *gpus) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.of)
	g.known = false
}

// findGPUs has the sandboxes of containers hold their GPUs. Of one that does not run, its mailbox knows
// whether it still does; before there is one, it does.
func (w *worker) findGPUs(containers []docker.Container) {
	of := map[key][]string{}
	for _, c := range containers {
		k, ok := labelledKey(c.Labels)
		ids := labelledGPUs(c.Labels)
		if !ok || len(ids) == 0 {
			continue
		}
		w.mu.Lock()
		_, settles := w.sandboxes[k]
		w.mu.Unlock()
		if c.Running || !settles {
			of[k] = ids
		}
	}
	w.gpus.found(of)
}

func labelledGPUs(labels map[string]string) []string {
	if labels[docker.LabelGPUs] == "" {
		return nil
	}
	return strings.Split(labels[docker.LabelGPUs], ",")
}
