package coordinator

import (
	"cmp"
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// hosts is what a coordinator knows of the hosts: what their workers registered, when they were
// last heard, and, from the projection, what is placed on them. "suspect" comes from heartbeats;
// "lost" only from having taken the host's lock.
type hosts struct {
	timing     Timing
	projection *projection
	now        func() time.Time // the store's time
	log        *slog.Logger

	mu      sync.Mutex
	known   map[string]*hostEntry         // by worker
	ids     map[string]string             // the workers of known hosts, by host id
	wishes  map[string]*protocol.HostWish // what operators want of hosts, by host id
	version uint64                        // counts the changes of what is known of hosts

	read atomic.Uint64 // the table of hosts is known up to this revision
}

type hostEntry struct {
	host    protocol.Host
	heard   time.Time // last heartbeat or registration, by the monotonic clock
	from    time.Time // its silence counts from here on at the earliest
	lost    bool      // its lock was taken from it, or was free
	changed bool      // tell it everything that it owns: its process is new, or work items were lost
	version uint64    // of the table, when something of it changed last

	listening uint64 // of its last heartbeat
	off       bool   // that its clock is off was said
}

func newHosts(t Timing, p *projection) *hosts {
	h := &hosts{timing: t, projection: p, now: p.conn.Now, log: p.log, known: map[string]*hostEntry{}, ids: map[string]string{}, wishes: map[string]*protocol.HostWish{}}
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
	if name := h.ids[hostID]; name != "" && name != hostID { // which is no worker's, see rows
		return name
	}
	return worker
}

// follow takes over a change of the table of hosts.
func (h *hosts) follow(worker string, entry *protocol.Host, revision uint64) {
	h.register(worker, entry)
	h.read.Store(revision)
}

// register takes over an entry of the table of hosts. An entry that ended is not forgotten: its
// sandboxes are still there.
func (h *hosts) register(worker string, entry *protocol.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry == nil {
		if e := h.known[worker]; e != nil { // it said goodbye
			e.heard, e.from = time.Time{}, time.Time{}
			h.noteLocked(e)
		}
		return
	}
	h.dropOtherNamesLocked(worker, entry)
	e := h.entry(worker)
	e.changed = e.changed || e.host.Instance != entry.Instance || e.host.Token != entry.Token
	if e.lost || e.state(h.timing) == protocol.HostSuspect || !sameHost(&e.host, entry) {
		h.noteLocked(e)
	}
	if e.host.HostID != entry.HostID && h.ids[e.host.HostID] == worker {
		delete(h.ids, e.host.HostID)
	}
	e.host, e.lost, h.ids[entry.HostID] = *entry, false, worker
	if h.now().Sub(entry.SeenAt) < h.timing.Suspect {
		e.heard = time.Now()
	}
	h.judgeClock(e)
}

// dropOtherNamesLocked forgets the names that a host had before. Workers register every few seconds, and nearly
// always as they did before: there is nothing to look for then.
func (h *hosts) dropOtherNamesLocked(worker string, entry *protocol.Host) {
	if e := h.known[worker]; e != nil && h.ids[entry.HostID] == worker && e.host.Token == entry.Token {
		return
	}
	for other, e := range h.known {
		if other != worker && e.host.HostID == entry.HostID && e.host.Token < entry.Token {
			delete(h.known, other)
			h.version++
		}
	}
}

// sameHost says whether two entries of a host differ by no more than when they were written, and their clocks.
func sameHost(a, b *protocol.Host) bool {
	x, y := *a, *b
	for _, h := range []*protocol.Host{&x, &y} {
		h.SeenAt, h.Skew, h.ClockOff = time.Time{}, nil, false
	}
	return reflect.DeepEqual(&x, &y)
}

// noteLocked notes that something of a host changed, for the scheduler.
func (h *hosts) noteLocked(e *hostEntry) {
	h.version++
	e.version = h.version
	h.projection.wakeUp()
}

func (h *hosts) entry(worker string) *hostEntry {
	e := h.known[worker]
	if e == nil {
		e = &hostEntry{from: time.Now()}
		h.known[worker] = e
		h.noteLocked(e)
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
		h.noteLocked(e)
	}
	e.changed = e.changed || e.listening != b.Listening
	e.listening = b.Listening
	e.heard, e.lost = time.Now(), false
	e.host.Healthy, e.host.Problem, e.host.Full, e.host.Skew = b.Healthy, b.Problem, b.Full, b.Skew
	h.judgeClock(e)
}

// list returns every host with its state and what is placed on it.
func (h *hosts) list() []*protocol.Host {
	rows, _ := h.rows()
	return placement.HostsOf(rows)
}

// rows is list in the order of the workers' names, with the versions of its rows and of all.
func (h *hosts) rows() ([]placement.Row, uint64) {
	used, workers := h.projection.uses()
	h.mu.Lock()
	defer h.mu.Unlock()
	for hostID, worker := range workers { // hosts that only sandboxes know of
		if h.ids[hostID] == "" && !h.forgottenLocked(hostID) {
			host := protocol.Host{Version: protocol.Version, Worker: worker, HostID: hostID}
			if h.known[worker] != nil { // a reinstalled machine: another host with the same name
				host.Worker, host.Problem = hostID, "worker "+worker+" has another host now"
			}
			h.entry(host.Worker).host = host
			h.ids[hostID] = host.Worker
		}
	}
	rows, copies := make([]placement.Row, 0, len(h.known)), make([]protocol.Host, len(h.known))
	now := h.now()
	for _, e := range h.known {
		if h.forgottenLocked(e.host.HostID) {
			continue
		}
		host := &copies[len(rows)]
		*host = e.host
		host.State = e.state(h.timing)
		h.show(host)
		used[host.HostID].AddTo(host)
		if !e.heard.IsZero() {
			host.SeenAt = now.Add(-time.Since(e.heard))
		}
		rows = append(rows, placement.Row{Host: host, Version: e.version})
	}
	slices.SortFunc(rows, func(a, b placement.Row) int { return cmp.Compare(a.Host.Worker, b.Host.Worker) })
	return rows, h.version
}

// changedSince says whether something of a host changed since a version of the table.
func (h *hosts) changedSince(version uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version != version
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

// byID returns a host as the watchdog looks at it, without what is placed there; nil where nobody
// knows it, or it was forgotten.
func (h *hosts) byID(hostID string) *protocol.Host {
	for range 2 {
		h.mu.Lock()
		e, forgotten := h.known[h.ids[hostID]], h.forgottenLocked(hostID)
		if e != nil && !forgotten {
			defer h.mu.Unlock()
			host := e.host
			host.State = e.state(h.timing)
			h.show(&host)
			return &host
		}
		h.mu.Unlock()
		if hostID == "" || forgotten {
			break
		}
		h.list() // makes entries for hosts that only sandboxes know of
	}
	return nil
}

// ready returns the workers of the hosts that are ready, by the hosts' ids.
func (h *hosts) ready() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	ready := make(map[string]string, len(h.known))
	for worker, e := range h.known {
		if e.state(h.timing) == protocol.HostReady {
			ready[e.host.HostID] = worker
		}
	}
	return ready
}

// takeChanged returns the workers that registered again since the last call, and their hosts.
func (h *hosts) takeChanged() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var workers map[string]string
	for worker, e := range h.known {
		if e.changed {
			if workers == nil {
				workers = map[string]string{}
			}
			e.changed = false
			workers[worker] = e.host.HostID
		}
	}
	return workers
}

// reconnected has every worker told again about everything it owns. This coordinator was cut off, so their silence
// says nothing about them, and a thousand workers need longer to come back than one.
func (h *hosts) reconnected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.known {
		e.changed, e.from = true, time.Now().Add(comeBack*h.timing.Suspect)
	}
}

// comeBack is how many times as long as otherwise a host may be silent when the connection was away.
const comeBack = 5

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
		h.noteLocked(e)
	}
}
