package firewall

import (
	"net/netip"
	"sync"
)

// host reads the engine's host through the engine's network namespace. The lock also guards the firewall and the table,
// because the namespace must stay open while they use it.
type host struct {
	engine string // address of the Docker Engine

	mu    sync.Mutex
	place *namespace // nil while the namespace is not open
}

// enter opens the engine's namespace unless it is already open. The caller holds the lock.
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

// Close closes the namespace. The rules in the namespace remain.
func (h *host) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leave()
}

// Exists reports whether the namespace has an interface with this name. Boxfleet need not have created it.
func (h *host) Exists(bridge string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.enter() == nil && h.place.exists(bridge)
}

// Subnets returns the subnets of all sandbox bridges in the namespace, including those of other deployments. It derives
// the subnets from the bridges' names. It returns nil if the namespace cannot be read.
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
