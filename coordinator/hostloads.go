package coordinator

import (
	"maps"
	"slices"
	"sync"

	"github.com/boxfleet/boxfleet/coordinator/placement"
)

// hostLoads are the loads of the hosts, by host id.
type hostLoads struct {
	mu      *sync.RWMutex // the projection's lock
	of      map[string]*hostLoad
	changed map[string]struct{} // hosts whose load changed since the last takeChanged
}

func newHostLoads(mu *sync.RWMutex) hostLoads {
	return hostLoads{mu: mu, of: map[string]*hostLoad{}, changed: map[string]struct{}{}}
}

// hostLoad is the load of a host: its sandboxes, and the resources that they take. A sandbox also takes resources while
// it is being created or deleted.
type hostLoad struct {
	worker    string // the worker named in the newest assignment
	used      load
	sandboxes map[key]struct{}
	preparing map[key]struct{} // assigned and not ready yet; placed on another host if this host is lost
	pending   map[key]struct{} // sandboxes for which the host's worker has something to do
}

// host returns the entry of a host. It creates the entry if the host has none.
func (l *hostLoads) host(id string) *hostLoad {
	h := l.of[id]
	if h == nil {
		h = &hostLoad{sandboxes: map[key]struct{}{}, preparing: map[key]struct{}{}, pending: map[key]struct{}{}}
		l.of[id] = h
	}
	return h
}

// add adds to the load of a host, or subtracts from it if sign is -1.
func (l *hostLoads) add(id string, more load, sign int) {
	if more == (load{}) {
		return
	}
	l.host(id).used.add(more, sign)
	l.changed[id] = struct{}{}
}

// leave removes a sandbox from a host.
func (l *hostLoads) leave(id string, k key) {
	h := l.host(id)
	delete(h.sandboxes, k)
	delete(h.preparing, k)
	delete(h.pending, k)
	l.forgetEmpty(id)
}

func (l *hostLoads) forgetEmpty(id string) {
	if h := l.of[id]; h != nil && len(h.sandboxes) == 0 && h.used == (load{}) {
		delete(l.of, id)
	}
}

// usages returns the usage of each host with a load, and the worker named in its newest assignment.
func (l *hostLoads) usages() (used map[string]placement.Usage, workers map[string]string) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	used, workers = make(map[string]placement.Usage, len(l.of)), make(map[string]string, len(l.of))
	for id, h := range l.of {
		used[id] = h.used.usage()
		if len(h.sandboxes) > 0 {
			workers[id] = h.worker
		}
	}
	return used, workers
}

// workerOn returns the worker named in the newest assignment to a host that has sandboxes, or an empty name.
func (l *hostLoads) workerOn(hostID string) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if h := l.of[hostID]; h != nil && len(h.sandboxes) > 0 {
		return h.worker
	}
	return ""
}

// takeChanged returns the usage of the hosts whose usage changed since the last call.
func (l *hostLoads) takeChanged() map[string]placement.Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.changed) == 0 {
		return nil
	}
	used := make(map[string]placement.Usage, len(l.changed))
	for id := range l.changed {
		used[id] = placement.Usage{}
		if h := l.of[id]; h != nil {
			used[id] = h.used.usage()
		}
	}
	clear(l.changed)
	return used
}

// The method "on" returns the sandboxes of a host.
func (l *hostLoads) on(hostID string) []key {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if h := l.of[hostID]; h != nil {
		return slices.Collect(maps.Keys(h.sandboxes))
	}
	return nil
}

// pendingOn returns the sandboxes of a host for which its worker has something to do.
func (l *hostLoads) pendingOn(hostID string) []key {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if h := l.of[hostID]; h != nil {
		return slices.Collect(maps.Keys(h.pending))
	}
	return nil
}
