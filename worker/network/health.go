package network

import "sync"

// health is why this host cannot be protected.
type health struct {
	mu      sync.Mutex
	problem string // "" when the host is protected
}

// set records why the host cannot be protected, nil when it is, and reports whether that changed between a
// problem and none.
func (h *health) set(err error) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	changed = (h.problem == "") != (problem == "")
	h.problem = problem
	return changed
}

func (h *health) get() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.problem
}
