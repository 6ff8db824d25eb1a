package coordinator

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/protocol"
)

// sandboxIndex answers what is asked of the living sandboxes again and again, without a look at each: it is kept as
// they change. The projection's lock guards it.
type sandboxIndex struct {
	hosts   map[string]*hostUse // by host id
	places  map[key]placed      // where a sandbox is, and what it takes there
	waiting []waiting           // those that have no host, the oldest first
	pending map[key]struct{}
	active  map[key]struct{} // with execs that have not ended
	flying  map[key]placed   // assignments that are on their way into the log
	changed map[string]struct{}
	wakes   deadlines
}

// hostUse is what the sandboxes of a host take of it. One that is being made, or removed, holds its place.
type hostUse struct {
	worker    string // that it had when a sandbox was placed there last
	used      taken
	sandboxes map[key]struct{}
	bound     map[key]struct{} // assigned, and not ready yet: they go elsewhere when the host is lost
	owing     map[key]struct{} // about which its worker has something to do
}

// placed is a sandbox's place.
type placed struct {
	host string
	used taken
}

// waiting is a place in the line of those that wait for a host.
type waiting struct {
	since time.Time
	key   key
}

func (w waiting) compare(v waiting) int {
	return cmp.Or(w.since.Compare(v.since), cmp.Compare(w.key.ID, v.key.ID), cmp.Compare(w.key.Tenant, v.key.Tenant))
}

// taken is a usage in whole numbers, so that what is added and taken back again leaves nothing behind.
type taken struct {
	n, gpus   int
	nanoCPU   int64
	mem, disk protocol.Bytes
	pids      int64
}

func takenBy(u placement.Usage) taken {
	return taken{u.Sandboxes, u.GPUs, int64(u.CPU*1e9 + 0.5), u.Memory, u.Disk, u.PIDs}
}

func (r *taken) add(v taken, sign int) {
	s := int64(sign)
	r.n += sign * v.n
	r.gpus += sign * v.gpus
	r.nanoCPU += s * v.nanoCPU
	r.mem += protocol.Bytes(s) * v.mem
	r.disk += protocol.Bytes(s) * v.disk
	r.pids += s * v.pids
}

func (r taken) usage() placement.Usage {
	return placement.Usage{
		Totals:    protocol.Totals{CPU: float64(r.nanoCPU) / 1e9, Memory: r.mem, Disk: r.disk, PIDs: r.pids},
		Sandboxes: r.n, GPUs: r.gpus,
	}
}

func newSandboxIndex() sandboxIndex {
	return sandboxIndex{
		hosts: map[string]*hostUse{}, places: map[key]placed{}, pending: map[key]struct{}{}, active: map[key]struct{}{},
		flying: map[key]placed{}, changed: map[string]struct{}{}, wakes: deadlines{at: map[key]time.Time{}},
	}
}

// host is the entry of a host.
func (x *sandboxIndex) host(id string) *hostUse {
	u := x.hosts[id]
	if u == nil {
		u = &hostUse{sandboxes: map[key]struct{}{}, bound: map[key]struct{}{}, owing: map[key]struct{}{}}
		x.hosts[id] = u
	}
	return u
}

// use adds to what a host's sandboxes take, or takes it back.
func (x *sandboxIndex) use(id string, r taken, sign int) {
	if r == (taken{}) {
		return
	}
	x.host(id).used.add(r, sign)
	x.changed[id] = struct{}{}
}

// move takes a sandbox's new handle over; old is nil for a new one, b for one that is living no longer. It reports
// whether that is something for the scheduler: a sandbox that waits, or room on a host.
func (x *sandboxIndex) move(k key, old, b *protocol.Sandbox) (matters bool) {
	was, waited := x.places[k], old != nil && awaitsHost(old)
	now, waits := placed{}, b != nil && awaitsHost(b)
	if b != nil && b.Worker != "" {
		now.host = b.HostID
		if b.Assigned || b.State == protocol.StateDeleting { // it holds its place until it is gone
			now.used = was.used
			if old == nil || old.Generation != b.Generation || was.used.n == 0 {
				now.used = takenBy(placement.UsageOf(&b.Spec))
			}
		}
	}
	host := now.host
	if f, flies := x.flying[k]; flies && (b == nil || b.Assigned && b.HostID == f.host) {
		delete(x.flying, k)
		x.use(f.host, f.used, -1)
	}
	if was != now {
		matters = was.used.n > now.used.n
		if was.host != "" {
			x.use(was.host, was.used, -1)
		}
		if was.host != "" && was.host != host {
			x.leave(was.host, k)
		}
		if host != "" {
			x.use(host, now.used, 1)
			u := x.host(host)
			u.worker, u.sandboxes[k], x.places[k] = b.Worker, struct{}{}, now
		} else {
			delete(x.places, k)
		}
	}
	if host != "" {
		u := x.hosts[host]
		set(u.bound, k, b.State == protocol.StatePending && b.Assigned && !b.Resuming)
		set(u.owing, k, owes(b))
	}
	set(x.pending, k, b != nil && b.State == protocol.StatePending)
	set(x.active, k, b != nil && b.ActiveExecs > 0)
	if waited && (!waits || !old.StateChangedAt.Equal(b.StateChangedAt)) {
		x.line(waiting{old.StateChangedAt, k}, false)
		waited = false
	}
	if waits && !waited {
		x.line(waiting{b.StateChangedAt, k}, true)
	}
	return matters || waits
}

// awaitsHost says whether a sandbox is pending and has no host.
func awaitsHost(b *protocol.Sandbox) bool { return b.State == protocol.StatePending && !b.Assigned }

// leave takes a sandbox off a host.
func (x *sandboxIndex) leave(id string, k key) {
	u := x.host(id)
	delete(u.sandboxes, k)
	delete(u.bound, k)
	delete(u.owing, k)
	x.tidy(id)
}

// tidy forgets a host that nothing is on.
func (x *sandboxIndex) tidy(id string) {
	if u := x.hosts[id]; u != nil && len(u.sandboxes) == 0 && u.used == (taken{}) {
		delete(x.hosts, id)
	}
}

func set[K comparable](m map[K]struct{}, k K, in bool) {
	if in {
		m[k] = struct{}{}
	} else {
		delete(m, k)
	}
}

// line puts a sandbox into the line of those that wait, or takes it out.
func (x *sandboxIndex) line(w waiting, in bool) {
	i, there := slices.BinarySearchFunc(x.waiting, w, waiting.compare)
	switch {
	case in && !there:
		x.waiting = slices.Insert(x.waiting, i, w)
	case !in && there:
		x.waiting = slices.Delete(x.waiting, i, i+1)
	}
}

// uses returns what is taken of each host on which there is something, and the worker that it had.
func (p *projection) uses() (used map[string]placement.Usage, workers map[string]string) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	used, workers = make(map[string]placement.Usage, len(p.index.hosts)), make(map[string]string, len(p.index.hosts))
	for id, u := range p.index.hosts {
		used[id] = u.used.usage()
		if len(u.sandboxes) > 0 {
			workers[id] = u.worker
		}
	}
	return used, workers
}

// changedUses returns what is taken of hosts whose use changed since the last call.
func (p *projection) changedUses() map[string]placement.Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.index.changed) == 0 {
		return nil
	}
	used := make(map[string]placement.Usage, len(p.index.changed))
	for id := range p.index.changed {
		used[id] = placement.Usage{}
		if u := p.index.hosts[id]; u != nil {
			used[id] = u.used.usage()
		}
	}
	clear(p.index.changed)
	return used
}

// on returns the sandboxes of a host.
func (p *projection) on(hostID string) []key {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if u := p.index.hosts[hostID]; u != nil {
		return slices.Collect(maps.Keys(u.sandboxes))
	}
	return nil
}

// owing returns the sandboxes about which the workers of some hosts have something to do.
func (p *projection) owing(ready func(hostID string) bool, visit func(k key, b *protocol.Sandbox)) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for id, u := range p.index.hosts {
		if len(u.owing) == 0 || !ready(id) {
			continue
		}
		for k := range u.owing {
			visit(k, p.sandboxes[k])
		}
	}
}

// withExecs returns the sandboxes that have execs which have not ended.
func (p *projection) withExecs() (list []*protocol.Sandbox) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for k := range p.index.active {
		list = append(list, p.sandboxes[k])
	}
	return list
}

// pendings returns the sandboxes that are pending.
func (p *projection) pendings() (list []*protocol.Sandbox) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for k := range p.index.pending {
		list = append(list, p.sandboxes[k])
	}
	return list
}

// line returns the sandboxes that wait for a host, the oldest first: those that have none, and those that were not
// ready yet when theirs was lost. flying says whether those are among them whose assignment is on its way.
func (p *projection) line(lost []string, flying bool) []*protocol.Sandbox {
	p.mu.RLock()
	defer p.mu.RUnlock()
	line := p.index.waiting
	for i, id := range lost {
		u := p.index.hosts[id]
		if u == nil || len(u.bound) == 0 {
			continue
		}
		if i == 0 || len(line) == len(p.index.waiting) {
			line = slices.Clone(line)
		}
		for k := range u.bound {
			line = append(line, waiting{p.sandboxes[k].StateChangedAt, k})
		}
	}
	if len(line) != len(p.index.waiting) {
		slices.SortFunc(line, waiting.compare)
	}
	list := make([]*protocol.Sandbox, 0, len(line))
	for _, w := range line {
		if _, flies := p.index.flying[w.key]; !flies || flying {
			list = append(list, p.sandboxes[w.key])
		}
	}
	return list
}

// launch counts an assignment on its host before it is in the log, if the sandbox is still the one that it was
// made for, and none of its is on its way.
func (p *projection) launch(b *protocol.Sandbox, hostID string, u placement.Usage) bool {
	k := key{Tenant: b.Tenant, ID: b.ID}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.sandboxes[k]
	if _, flies := p.index.flying[k]; flies || now == nil || now.Generation != b.Generation || now.State != protocol.StatePending || now.Assigned && now.Resuming {
		return false
	}
	f := placed{hostID, takenBy(u)}
	p.index.flying[k] = f
	p.index.use(f.host, f.used, 1)
	return true
}

// land takes back what was counted, where the assignment did not come into the log.
func (p *projection) land(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f, flies := p.index.flying[k]; flies {
		delete(p.index.flying, k)
		p.index.use(f.host, f.used, -1)
		p.index.tidy(f.host)
	}
}
