package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// hosts is what a coordinator knows of the hosts: what their workers registered, when they were
// last heard, and, from the projection, what is placed on them. "suspect" comes from heartbeats;
// "lost" only from having taken the host's lock.
type hosts struct {
	timing     Timing
	projection *projection

	mu    sync.Mutex
	known map[string]*hostEntry // by worker
}

type hostEntry struct {
	host    protocol.Host
	heard   time.Time // last heartbeat or registration, by the monotonic clock
	from    time.Time // its silence counts from here on at the earliest
	lost    bool      // its lock was taken from it, or was free
	changed bool      // tell it everything that it owns: its process is new, or work items were lost

	listening uint64 // of its last heartbeat
}

func newHosts(t Timing, p *projection) *hosts {
	h := &hosts{timing: t, projection: p, known: map[string]*hostEntry{}}
	p.route = h.workerOf
	return h
}

// workerOf is the name of the worker that has a host now: the one that placed a sandbox there may
// have been renamed since.
func (h *hosts) workerOf(hostID, worker string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.workerOfLocked(hostID, worker)
}

func (h *hosts) workerOfLocked(hostID, worker string) string {
	if e := h.known[worker]; e != nil && e.host.HostID == hostID {
		return worker
	}
	for name, e := range h.known {
		if e.host.HostID == hostID {
			return name
		}
	}
	return worker
}

// register takes over an entry of the table of hosts. An entry that ended is not forgotten: its
// sandboxes are still there.
func (h *hosts) register(worker string, entry *protocol.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.projection.wakeUp()
	if entry == nil {
		if e := h.known[worker]; e != nil { // it said goodbye
			e.heard, e.from = time.Time{}, time.Time{}
		}
		return
	}
	for other, e := range h.known {
		if other != worker && e.host.HostID == entry.HostID && e.host.Token < entry.Token {
			delete(h.known, other) // the host has another name now
		}
	}
	e := h.entry(worker)
	e.changed = e.changed || e.host.Instance != entry.Instance || e.host.Token != entry.Token
	e.host, e.lost = *entry, false
	if time.Since(entry.SeenAt) < h.timing.Suspect {
		e.heard = time.Now()
	}
}

func (h *hosts) entry(worker string) *hostEntry {
	e := h.known[worker]
	if e == nil {
		e = &hostEntry{from: time.Now()}
		h.known[worker] = e
	}
	return e
}

// listen hears heartbeats until ctx ends.
func (h *hosts) listen(ctx context.Context, conn *jetstream.Conn) error {
	stop, err := conn.Heartbeats(h.beat)
	if err != nil {
		return err
	}
	defer stop()
	<-ctx.Done()
	return ctx.Err()
}

func (h *hosts) beat(b *protocol.Heartbeat) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.known[b.Worker]
	if e == nil || e.host.Instance != b.Instance {
		return // its registration is on the way
	}
	if time.Since(e.heard) > h.timing.Suspect || e.host.Healthy != b.Healthy || e.host.Full != b.Full || e.lost {
		defer h.projection.wakeUp()
	}
	e.changed = e.changed || e.listening != b.Listening
	e.listening = b.Listening
	e.heard, e.lost = time.Now(), false
	e.host.Healthy, e.host.Problem, e.host.Full = b.Healthy, b.Problem, b.Full
}

// everyGPU is what a sandbox with all of its host's GPUs uses: more than any host has.
const everyGPU = 1 << 10

// usage is what sandboxes take of a host.
type usage struct {
	protocol.Totals
	n, gpus int
}

func usageOf(s *protocol.SandboxSpec) usage {
	u := usage{Totals: s.Totals(), n: 1, gpus: s.GPUCount()}
	if u.gpus < 0 {
		u.gpus = everyGPU
	}
	return u
}

func (u usage) plus(v usage) usage { return usage{u.Totals.Plus(v.Totals), u.n + v.n, u.gpus + v.gpus} }

// addTo counts it on a host.
func (u usage) addTo(h *protocol.Host) {
	h.Sandboxes += u.n
	h.UsedCPU += u.CPU
	h.UsedMem += u.Memory
	h.UsedDisk += u.Disk
	h.UsedPIDs += u.PIDs
	h.UsedGPUs = min(h.UsedGPUs+u.gpus, h.GPUs)
}

// list returns every host with its state and what is placed on it.
func (h *hosts) list() []*protocol.Host {
	used := map[string]usage{}
	orphans := map[string]string{} // hosts that only sandboxes know of, and their workers
	for _, b := range h.projection.all() {
		if b.Worker == "" || b.State == protocol.StateDeleted {
			continue
		}
		orphans[b.HostID] = b.Worker
		// A sandbox that is being deleted holds its place until it is gone.
		if b.Assigned || b.State == protocol.StateDeleting {
			used[b.HostID] = used[b.HostID].plus(usageOf(&b.Spec))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for hostID, worker := range orphans {
		if e := h.known[h.workerOfLocked(hostID, worker)]; e == nil {
			h.entry(worker).host = protocol.Host{Version: protocol.Version, Worker: worker, HostID: hostID}
		}
	}
	list := make([]*protocol.Host, 0, len(h.known))
	for _, e := range h.known {
		host := e.host
		host.State = e.state(h.timing)
		used[host.HostID].addTo(&host)
		if !e.heard.IsZero() {
			host.SeenAt = time.Now().Add(-time.Since(e.heard)).UTC()
		}
		list = append(list, &host)
	}
	return list
}

func (e *hostEntry) state(t Timing) protocol.HostState {
	switch {
	case e.lost:
		return protocol.HostLost
	case e.heard.IsZero() || time.Since(e.heard) > t.Suspect:
		return protocol.HostSuspect
	case !e.host.Healthy:
		return protocol.HostUnhealthy
	}
	return protocol.HostReady
}

// states returns the state of every host that is known, by the host's id.
func (h *hosts) states() map[string]protocol.HostState {
	h.mu.Lock()
	defer h.mu.Unlock()
	states := make(map[string]protocol.HostState, len(h.known))
	for _, e := range h.known {
		states[e.host.HostID] = e.state(h.timing)
	}
	return states
}

// takeChanged returns the workers that registered anew since the last call.
func (h *hosts) takeChanged() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var workers []string
	for worker, e := range h.known {
		if e.changed {
			e.changed = false
			workers = append(workers, worker)
		}
	}
	return workers
}

// reconnected has every worker told anew about everything it owns. That none was heard while this
// coordinator was cut off says nothing of any.
func (h *hosts) reconnected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.known {
		e.changed, e.from = true, time.Now()
	}
}

// mayBeLost says whether a host that is not heard had the time to be: where NATS was away, all locks
// have ended, and a worker needs a moment to take its own again.
func (h *hosts) mayBeLost(worker string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.known[worker]
	return e != nil && time.Since(e.from) > h.timing.Suspect
}

// setLost notes that a host's lock was free: its worker does not run.
func (h *hosts) setLost(worker string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.known[worker]; e != nil && time.Since(e.heard) > h.timing.Suspect {
		e.lost = true
	}
}
