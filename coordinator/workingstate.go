package coordinator

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// workingState is the data that the scheduler and the watchdog work on: indexes of the living sandboxes, updated with
// each change. The cost of their work is therefore proportional to the number of changes, not to the number of
// sandboxes.
type workingState struct {
	mu        *sync.RWMutex             // the projection's lock
	sandboxes map[key]*protocol.Sandbox // the map of the read model

	schedulerWake wake.Signal // something changed that concerns the scheduler
	deadlineWake  wake.Signal // the time of the next deadline has changed

	hosts     hostLoads
	assigned  map[key]reservedOn // the host of each sandbox, and the resources that it takes there
	waiting   waitQueue          // sandboxes without a host, the oldest first
	pending   map[key]struct{}
	active    map[key]struct{}   // sandboxes with execs that have not ended
	inFlight  map[key]reservedOn // assignments that are being appended
	deadlines deadlines
	tenants   tenantShares
}

// reservedOn is a sandbox's host, and the resources that the sandbox takes there.
type reservedOn struct {
	host string
	used load
}

// waiting is a position in the queue of sandboxes that wait for a host.
type waiting struct {
	since time.Time
	key   key
}

func (w waiting) compare(v waiting) int {
	return cmp.Or(w.since.Compare(v.since), cmp.Compare(w.key.ID, v.key.ID), cmp.Compare(w.key.Tenant, v.key.Tenant))
}

// waitQueue is a queue of sandboxes, the oldest first.
type waitQueue []waiting

// load is a usage in integers. Adding and subtracting integers leaves no rounding error.
type load struct {
	sandboxes, gpus int
	nanoCPU         int64
	mem, disk       protocol.Bytes
	pids            int64
}

func loadOf(u placement.Usage) load {
	return load{u.Sandboxes, u.GPUs, int64(u.CPU*1e9 + 0.5), u.Memory, u.Disk, u.PIDs}
}

func (l *load) add(v load, sign int) {
	s := int64(sign)
	l.sandboxes += sign * v.sandboxes
	l.gpus += sign * v.gpus
	l.nanoCPU += s * v.nanoCPU
	l.mem += protocol.Bytes(s) * v.mem
	l.disk += protocol.Bytes(s) * v.disk
	l.pids += s * v.pids
}

func (l load) usage() placement.Usage {
	return placement.Usage{
		Totals:    protocol.Totals{CPU: float64(l.nanoCPU) / 1e9, Memory: l.mem, Disk: l.disk, PIDs: l.pids},
		Sandboxes: l.sandboxes, GPUs: l.gpus,
	}
}

func newWorkingState(mu *sync.RWMutex, sandboxes map[key]*protocol.Sandbox) *workingState {
	return &workingState{
		mu: mu, sandboxes: sandboxes, schedulerWake: wake.New(), deadlineWake: wake.New(),
		hosts: newHostLoads(mu), assigned: map[key]reservedOn{},
		pending: map[key]struct{}{}, active: map[key]struct{}{},
		inFlight: map[key]reservedOn{}, deadlines: deadlines{at: map[key]time.Time{}},
		tenants: newTenantShares(mu),
	}
}

// moveLocked replaces a sandbox's handle in the indexes. before is nil if the sandbox is new. after is nil if the
// sandbox is no longer living. moveLocked reports whether the change concerns the scheduler: a sandbox waits, or room
// was freed on a host.
func (w *workingState) moveLocked(k key, before, after *protocol.Sandbox) (concerns bool) {
	next := reservationOf(w.assigned[k], before, after)
	w.landLocked(k, after, next.host)
	freed := w.reserveLocked(k, after, next)
	if next.host != "" {
		h := w.hosts.of[next.host]
		set(h.preparing, k, after.State == protocol.StatePending && after.Assigned && !after.Resuming)
		set(h.pending, k, workerPending(after))
	}
	set(w.pending, k, after != nil && after.State == protocol.StatePending)
	set(w.active, k, after != nil && after.ActiveExecs > 0)
	freed = w.countLocked(k, after) || freed
	return w.requeueLocked(k, before, after) || freed
}

// reservationOf returns the host of a sandbox, and the resources that the sandbox takes there now. The parameter last
// is the result of the previous call for the sandbox.
func reservationOf(last reservedOn, before, after *protocol.Sandbox) (next reservedOn) {
	if after == nil || after.Worker == "" {
		return next
	}
	next.host = after.HostID
	if !after.Assigned && after.State != protocol.StateDeleting { // a sandbox that is being deleted keeps its resources
		return next
	}
	next.used = last.used
	if before == nil || before.Generation != after.Generation || next.used.sandboxes == 0 {
		next.used = loadOf(placement.UsageOf(&after.Spec))
	}
	return next
}

// landLocked ends an assignment in flight when the assignment has been appended, or when its sandbox is no longer
// living.
func (w *workingState) landLocked(k key, after *protocol.Sandbox, host string) {
	f, inFlight := w.inFlight[k]
	if inFlight && (after == nil || after.Assigned && host == f.host) {
		delete(w.inFlight, k)
		w.hosts.add(f.host, f.used, -1)
	}
}

// reserveLocked replaces the resources that a sandbox takes. It reports whether the change frees room on a host.
func (w *workingState) reserveLocked(k key, after *protocol.Sandbox, next reservedOn) (freed bool) {
	old := w.assigned[k]
	if old == next {
		return false
	}
	if old.host != "" {
		w.hosts.add(old.host, old.used, -1)
	}
	if old.host != "" && old.host != next.host {
		w.hosts.leave(old.host, k)
	}
	if next.host != "" {
		w.hosts.add(next.host, next.used, 1)
		h := w.hosts.host(next.host)
		h.worker, h.sandboxes[k], w.assigned[k] = after.Worker, struct{}{}, next
	} else {
		delete(w.assigned, k)
	}
	return old.used.sandboxes > next.used.sandboxes
}

// requeueLocked updates a sandbox's position in the queue for hosts. It reports whether the sandbox waits.
func (w *workingState) requeueLocked(k key, before, after *protocol.Sandbox) (waits bool) {
	waited := before != nil && waitsForHost(before)
	waits = after != nil && waitsForHost(after)
	if waited && (!waits || !before.StateChangedAt.Equal(after.StateChangedAt)) {
		w.waiting.set(waiting{before.StateChangedAt, k}, false)
		waited = false
	}
	if waits && !waited {
		w.waiting.set(waiting{after.StateChangedAt, k}, true)
	}
	return waits
}

// waitsForHost reports whether a sandbox is pending and has no host.
func waitsForHost(b *protocol.Sandbox) bool { return b.State == protocol.StatePending && !b.Assigned }

// workerPending reports whether a sandbox's worker has something to do for it.
func workerPending(b *protocol.Sandbox) bool {
	switch b.State {
	case protocol.StatePending:
		return b.Assigned
	case protocol.StateReady:
		return b.Desired != protocol.StateReady || b.ActiveExecs > 0
	}
	return b.State == protocol.StateDeleting
}

// removeLocked removes a sandbox from the indexes. before is its last handle, or nil if the sandbox was not living.
func (w *workingState) removeLocked(k key, before *protocol.Sandbox) {
	w.moveLocked(k, before, nil)
	w.deadlines.drop(k)
}

// usesHostLocked reports whether a sandbox takes resources of a host, or room in its tenant's quota.
func (w *workingState) usesHostLocked(k key) bool {
	return w.assigned[k].used.sandboxes > 0 || w.tenants.of[k].sandboxes > 0
}

func set[K comparable](m map[K]struct{}, k K, in bool) {
	if in {
		m[k] = struct{}{}
	} else {
		delete(m, k)
	}
}

// set adds a sandbox to the queue or, if the parameter in is false, removes the sandbox.
func (q *waitQueue) set(at waiting, in bool) {
	i, found := slices.BinarySearchFunc(*q, at, waiting.compare)
	switch {
	case in && !found:
		*q = slices.Insert(*q, i, at)
	case !in && found:
		*q = slices.Delete(*q, i, i+1)
	}
}

// eachPending calls the function visit for each sandbox that its worker has something to do for, except on hosts for
// which the function ready returns false.
func (w *workingState) eachPending(ready func(hostID string) bool, visit func(k key, b *protocol.Sandbox)) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for id, h := range w.hosts.of {
		if len(h.pending) == 0 || !ready(id) {
			continue
		}
		for k := range h.pending {
			visit(k, w.sandboxes[k])
		}
	}
}

// withExecs returns the sandboxes with execs that have not ended.
func (w *workingState) withExecs() []*protocol.Sandbox { return w.handles(w.active) }

// pendingSandboxes returns the sandboxes that are pending.
func (w *workingState) pendingSandboxes() []*protocol.Sandbox { return w.handles(w.pending) }

func (w *workingState) handles(keys map[key]struct{}) (list []*protocol.Sandbox) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for k := range keys {
		list = append(list, w.sandboxes[k])
	}
	return list
}

// waitingForHost returns the sandboxes that wait for a host, the oldest first: sandboxes without a host, and sandboxes
// that were not ready when their host was lost. inFlight says whether to include sandboxes whose assignment is being
// appended.
func (w *workingState) waitingForHost(lost []string, inFlight bool) []*protocol.Sandbox {
	w.mu.RLock()
	defer w.mu.RUnlock()
	queue := w.waiting
	for i, id := range lost {
		h := w.hosts.of[id]
		if h == nil || len(h.preparing) == 0 {
			continue
		}
		if i == 0 || len(queue) == len(w.waiting) {
			queue = slices.Clone(queue)
		}
		for k := range h.preparing {
			queue = append(queue, waiting{w.sandboxes[k].StateChangedAt, k})
		}
	}
	if len(queue) != len(w.waiting) {
		slices.SortFunc(queue, waiting.compare)
	}
	list := make([]*protocol.Sandbox, 0, len(queue))
	for _, at := range queue {
		if _, flying := w.inFlight[at.key]; !flying || inFlight {
			list = append(list, w.sandboxes[at.key])
		}
	}
	return list
}

// launch adds an assignment to its host's load before the assignment is appended. It returns false if the sandbox has
// changed since the assignment was chosen, or if another assignment of the sandbox is in flight. If the quota has no
// room for the sandbox, it returns false and an error that names the limit.
func (w *workingState) launch(
	b *protocol.Sandbox, hostID string, u placement.Usage, quota protocol.Quota,
) (launched bool, over *protocol.Error) {
	k := key{Tenant: b.Tenant, ID: b.ID}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.sandboxes[k]
	if _, flying := w.inFlight[k]; flying || now == nil || now.Generation != b.Generation ||
		now.State != protocol.StatePending || now.Assigned && now.Resuming {
		return false, nil
	}
	f := reservedOn{hostID, loadOf(u)}
	if over := w.overLocked(k, f.used, quota); over != nil {
		return false, over
	}
	w.inFlight[k] = f
	w.hosts.add(f.host, f.used, 1)
	w.countLocked(k, now)
	return true, nil
}

// abort subtracts an assignment that was not appended from the load of its host.
func (w *workingState) abort(k key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f, flying := w.inFlight[k]; flying {
		delete(w.inFlight, k)
		w.hosts.add(f.host, f.used, -1)
		w.hosts.forgetEmpty(f.host)
		w.countLocked(k, w.sandboxes[k])
	}
}

// countOn sets on each host how many sandboxes it has in each state, and how many of their execs have not ended.
func (w *workingState) countOn(hosts []*protocol.Host) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, h := range hosts {
		l := w.hosts.of[h.HostID]
		if l == nil {
			continue
		}
		h.Holds = map[string]int{}
		for k := range l.sandboxes {
			b := w.sandboxes[k]
			h.Holds[string(b.State)]++
			h.Execs += b.ActiveExecs
		}
	}
}
