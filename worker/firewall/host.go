package firewall

import (
	"net/netip"
	"sync"
)

// host reads the engine's host through its network namespace. Its lock also guards the firewall and the table, because
// the namespace must stay open while one of them uses it.
type host struct {
	engine string // address of the Docker Engine

	mu    sync.Mutex
	place *namespace // nil: not open
}

// enter opens the engine's namespace if it is not open. The caller holds the lock.
func (h *host) enter() error {
	if h.place != nil {
		return nil
	}
	place, err := findNamespace(h.engine)
	if err == nil {
		h.place = place
	}
	return err
}

// leave closes the namespace. The caller holds the lock.
func (h *host) leave() {
	if h.place != nil {
		h.place.close()
		h.place = nil
	}
}

// Close releases the namespace. The rules stay.
func (h *host) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leave()
}

// Exists reports whether the namespace has an interface of that name, whoever created it.
func (h *host) Exists(bridge string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.enter() == nil && h.place.exists(bridge)
}

// Subnets returns the subnets of all sandbox bridges in the namespace, of any deployment, by their names. It returns
// nil if the namespace cannot be read.
func (h *host) Subnets() (found []netip.Prefix) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.enter() != nil {
		return nil
	}
	links, err := h.place.links()
	if err != nil {
		return nil
	}
	for _, l := range links {
		if subnet, ok := bridgeSubnet(l.name); ok {
			found = append(found, subnet)
		}
	}
	return found
}
