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

// hosts holds everything that a coordinator knows about hosts: the registration of each worker, the time of its last
// heartbeat and, from the projection, the sandboxes on each host. A host without recent heartbeats is suspect. It is
// not lost before a coordinator has taken its lock.
type hosts struct {
	timing     Timing
	lockTTL    time.Duration // life of the lock of a host that does not report it
	projection *projection
	now        func() time.Time // the time of the store's clock
	log        *slog.Logger

	mu      sync.Mutex
	known   map[string]*hostEntry               // by worker name
	ids     map[string]string                   // worker names of known hosts, by host id
	intents map[string]*protocol.OperatorIntent // what operators want of hosts, by host id
	version uint64                              // counts changes of the table
	leading bool                                // this coordinator leads

	read atomic.Uint64 // the stored table of hosts was read up to this revision
}

type hostEntry struct {
	host       protocol.Host
	heard      time.Time // when the last heartbeat or registration arrived; zero: never, or the worker signed off
	silentFrom time.Time // silence before this time does not make the host lost
	lost       bool      // this coordinator has taken the host's lock
	free       bool      // another coordinator leads, and the host's lock was free when this one read it
	changed    bool      // the worker needs every notification again: it is a new process, or may have missed some
	version    uint64    // version of the table at the last change of this entry

	listening     uint64 // value of Listening in the last heartbeat
	clockReported bool   // whether the log says that the host's clock is off
}

func newHosts(t Timing, p *projection) *hosts {
	h := &hosts{timing: t, lockTTL: jetstream.DefaultLockTTL, projection: p, log: p.log,
		now: func() time.Time { return p.conn.Now() }, known: map[string]*hostEntry{}, ids: map[string]string{},
		intents: map[string]*protocol.OperatorIntent{}}
	p.route = h.workerOf
	return h
}

// workerOf returns the name of the worker that has a host now. It may differ from the parameter worker, which is the
// name in the assignment.
func (h *hosts) workerOf(hostID, worker string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.workerOfLocked(hostID, worker)
}

func (h *hosts) workerOfLocked(hostID, worker string) string {
	if e := h.known[worker]; e != nil && e.host.HostID == hostID {
		return worker
	}
	if name := h.ids[hostID]; name != "" && name != hostID { // a name equal to the host id is a placeholder, see rows
		return name
	}
	return worker
}

// follow applies a change of the stored table of hosts.
func (h *hosts) follow(worker string, entry *protocol.Host, revision uint64) {
	if entry == nil || h.mayHave(worker, entry.HostID) {
		h.register(worker, entry)
	}
	h.read.Store(revision)
}

// mayHave reports whether a worker may register a host. A worker writes its own entry in the table of hosts, but could
// name any host there. The lock of a host can be written only by that host's worker and by coordinators. So if the
// table names another worker for the host, or the host's sandboxes were assigned to another worker, only the holder of
// the host's lock may register the host.
func (h *hosts) mayHave(worker, hostID string) bool {
	h.mu.Lock()
	known := h.ids[hostID]
	h.mu.Unlock()
	assigned := h.projection.work.hosts.workerOn(hostID)
	if (known == "" || known == worker || known == hostID) && (assigned == "" || assigned == worker) {
		return true
	}
	holder, err := h.projection.conn.HostHolder(context.Background(), hostID)
	if err == nil && holder == worker {
		h.drop(known, hostID)
		return true
	}
	h.log.Error("ignored a registration: the host has another worker, "+
		"and the registering worker does not hold the host's lock",
		"worker", worker, "host", hostID, "registered", known, "assigned", assigned, "holder", holder, "error", err)
	return false
}

// drop removes a worker's host from the table in memory. The worker's stored entry may name a host whose lock the
// worker does not hold.
func (h *hosts) drop(worker, hostID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.known[worker]; e != nil && e.host.HostID == hostID {
		delete(h.known, worker)
		delete(h.ids, hostID)
		h.version++
	}
}

// register applies an entry of the table of hosts. entry is nil if the entry was removed. A host whose entry was
// removed stays known, because its sandboxes remain.
func (h *hosts) register(worker string, entry *protocol.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry == nil {
		if e := h.known[worker]; e != nil { // the worker signed off
			e.heard, e.silentFrom = time.Time{}, h.mayReturnUntil(&e.host)
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
	measured := e.host
	e.host, e.lost, h.ids[entry.HostID] = *entry, false, worker
	if entry.Instance == measured.Instance { // only heartbeats have these values
		e.host.LeaseMargin, e.host.DiskFree, e.host.DiskSize = measured.LeaseMargin, measured.DiskFree, measured.DiskSize
	}
	if h.now().Sub(entry.SeenAt) < h.timing.Suspect {
		e.heard = time.Now()
	}
	e.noteClock(h.log)
}

// dropOtherNamesLocked forgets the earlier worker names of a host. It searches for such names only if the entry has
// changed: workers register every few seconds, nearly always with the same entry.
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

// sameHost reports whether two entries of a host are equal apart from SeenAt, and from the fields that heartbeats
// change and placement does not use.
func sameHost(a, b *protocol.Host) bool {
	x, y := *a, *b
	for _, h := range []*protocol.Host{&x, &y} {
		h.SeenAt, h.Skew, h.ClockOff = time.Time{}, nil, false
		h.LeaseMargin, h.DiskFree, h.DiskSize = nil, 0, 0
	}
	return reflect.DeepEqual(&x, &y)
}

// noteLocked records a change of a host for the scheduler.
func (h *hosts) noteLocked(e *hostEntry) {
	h.version++
	e.version = h.version
	h.projection.work.schedulerWake.Wake()
}

func (h *hosts) entry(worker string) *hostEntry {
	e := h.known[worker]
	if e == nil {
		e = &hostEntry{silentFrom: time.Now()}
		h.known[worker] = e
		h.noteLocked(e)
	}
	return e
}

// listen processes heartbeats until ctx ends.
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
		return // the registration of this worker process has not arrived yet
	}
	if time.Since(e.heard) > h.timing.Suspect || e.host.Healthy != b.Healthy || e.host.Full != b.Full || e.lost {
		h.noteLocked(e)
	}
	e.changed = e.changed || e.listening != b.Listening
	e.listening = b.Listening
	e.heard, e.lost = time.Now(), false
	e.host.Healthy, e.host.Problem, e.host.Full, e.host.Skew = b.Healthy, b.Problem, b.Full, b.Skew
	e.host.LeaseMargin, e.host.DiskFree, e.host.DiskSize = b.LeaseMargin, b.DiskFree, b.DiskSize
	e.noteClock(h.log)
}

// list returns every host with its state and usage.
func (h *hosts) list() []*protocol.Host {
	rows, _ := h.rows()
	return placement.HostsOf(rows)
}

// rows returns every host with its state, usage and version, ordered by worker name. It also returns the table's
// version.
func (h *hosts) rows() ([]placement.Row, uint64) {
	used, workers := h.projection.work.hosts.usages()
	h.mu.Lock()
	defer h.mu.Unlock()
	for hostID, worker := range workers { // add the hosts that are known only from their sandboxes
		if h.ids[hostID] == "" && !h.forgottenLocked(hostID) {
			host := protocol.Host{Version: protocol.Version, Worker: worker, HostID: hostID}
			from := h.mayReturnUntil(&host)
			if h.known[worker] != nil { // after a machine is reinstalled, its worker has the old name and a new host id
				host.Worker, host.Problem, from = hostID, "worker "+worker+" has another host now", time.Now()
			}
			e := h.entry(host.Worker)
			e.host, e.silentFrom = host, from
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
		host.State = e.shown(h.timing, h.leading)
		if host.Unsupported = ""; host.Instance != "" { // the wire versions of a worker are unknown until it has registered
			host.Unsupported = host.VersionRefusal(protocol.OldestVersion, protocol.Version)
		}
		h.showIntentLocked(host)
		used[host.HostID].AddTo(host)
		if !e.heard.IsZero() {
			host.SeenAt = now.Add(-time.Since(e.heard))
		}
		rows = append(rows, placement.Row{Host: host, Version: e.version})
	}
	slices.SortFunc(rows, func(a, b placement.Row) int { return cmp.Compare(a.Host.Worker, b.Host.Worker) })
	return rows, h.version
}

// changedSince reports whether a host has changed since a version of the table.
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

// shown returns the state of a host as readers see it. Only the leader can tell that a host is lost, because only the
// leader takes the host's lock. Any other coordinator shows a silent host as lost if the lock is free.
func (e *hostEntry) shown(t Timing, leading bool) protocol.HostState {
	state := e.state(t)
	if state == protocol.HostSuspect && e.free && !leading {
		return protocol.HostLost
	}
	return state
}

// isAlive reports whether a heartbeat or registration of the host's worker arrived recently.
func (e *hostEntry) isAlive(t Timing) bool {
	return !e.lost && !e.heard.IsZero() && time.Since(e.heard) <= t.Suspect
}

// states returns the state of every known host, by host id.
func (h *hosts) states() map[string]protocol.HostState {
	h.mu.Lock()
	defer h.mu.Unlock()
	states := make(map[string]protocol.HostState, len(h.known))
	for _, e := range h.known {
		states[e.host.HostID] = e.shown(h.timing, h.leading)
	}
	return states
}

// byID returns a host without its usage, or nil if the host is unknown or forgotten.
func (h *hosts) byID(hostID string) *protocol.Host {
	for range 2 {
		h.mu.Lock()
		e, forgotten := h.known[h.ids[hostID]], h.forgottenLocked(hostID)
		if e != nil && !forgotten {
			defer h.mu.Unlock()
			host := e.host
			host.State = e.state(h.timing)
			h.showIntentLocked(&host)
			return &host
		}
		h.mu.Unlock()
		if hostID == "" || forgotten {
			break
		}
		h.list() // adds entries for hosts known only from their sandboxes
	}
	return nil
}

// ready returns the workers of the ready hosts, by host id.
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

// takeChanged returns, by worker name, the ids of the hosts whose workers need every notification again. The next call
// does not return these hosts again.
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

// reconnected makes the notifier send every worker all notifications about its host again. It also gives the hosts a
// grace time: this coordinator was cut off, so it can conclude nothing from the silence of workers before now. The
// grace time is long, because a thousand workers take longer than one worker to come back.
func (h *hosts) reconnected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.known {
		e.changed, e.silentFrom = true, time.Now().Add(reconnectGrace*h.timing.Suspect)
	}
}

// reconnectGrace is how many times longer than usual a host may be silent after this coordinator was cut off.
const reconnectGrace = 5

// mayReturnUntil returns the value of silentFrom for a host whose worker has signed off. A worker that stops gives up
// its host's lock, although it may start again at once, for example with a new version. It gets as much time as a
// worker that dies: the life of the lock.
func (h *hosts) mayReturnUntil(host *protocol.Host) time.Time {
	return time.Now().Add(cmp.Or(host.LeaseTTL.Std(), h.lockTTL) - h.timing.Suspect)
}

// mayBeLost reports whether a silent host has had enough time, since silentFrom, to send a heartbeat again. For
// example, an outage of NATS ends all leases, and a worker then needs a moment to take its lock again.
func (h *hosts) mayBeLost(worker string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.known[worker]
	return e != nil && time.Since(e.silentFrom) > h.timing.Suspect
}

// setLost records that a host is lost, unless a heartbeat of its worker has arrived recently. The caller has found the
// host's lock free.
func (h *hosts) setLost(worker string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.known[worker]; e != nil && time.Since(e.heard) > h.timing.Suspect {
		e.lost = true
		h.noteLocked(e)
	}
}
