package worker

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// initialTimeout limits how long the host takes no new sandboxes because an existing sandbox cannot be inspected. For
// example, its history may be unreadable.
const initialTimeout = 2 * time.Minute

// initialInspection is the inspection of everything that is on the host when a tenure begins. The host takes no new
// sandboxes until the inspection is done and the sandboxes that have ended according to the log are removed. A host
// that was given up and comes back may be full of sandboxes that have ended or were replaced elsewhere.
type initialInspection struct {
	mu    sync.Mutex
	begun bool
	early map[protocol.SandboxKey]bool // sandboxes that settled before the host's objects were listed; nil afterwards
	left  map[protocol.SandboxKey]bool
	done  chan struct{}
}

func newInitialInspection() *initialInspection {
	return &initialInspection{early: map[protocol.SandboxKey]bool{}, done: make(chan struct{})}
}

// begin starts the wait for the sandboxes that were found on the host. Only the first call has an effect, because this
// worker created the sandboxes that later calls find. If some sandboxes are not settled in time, the inspection stops
// waiting for them and passes their keys to late.
func (i *initialInspection) begin(found []protocol.SandboxKey, late func(left []protocol.SandboxKey)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.begun {
		return
	}
	i.begun, i.left = true, map[protocol.SandboxKey]bool{}
	for _, k := range found {
		if !i.early[k] { // an early sandbox is settled, and may wait in Admit for the other sandboxes
			i.left[k] = true
		}
	}
	i.early = nil
	if !i.endIfDone() {
		time.AfterFunc(initialTimeout, func() { i.giveUp(late) })
	}
}

func (i *initialInspection) giveUp(late func(left []protocol.SandboxKey)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.left) > 0 {
		late(slices.Collect(maps.Keys(i.left)))
		clear(i.left)
		i.endIfDone()
	}
}

// settled records that the host matches the log for one sandbox. It returns true if this was the last sandbox that the
// inspection waited for.
func (i *initialInspection) settled(k protocol.SandboxKey) (last bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.begun {
		i.early[k] = true
	}
	if !i.left[k] {
		return false
	}
	delete(i.left, k)
	return i.endIfDone()
}

func (i *initialInspection) endIfDone() bool {
	if len(i.left) > 0 {
		return false
	}
	close(i.done)
	return true
}

// full returns the reason why the host takes no sandboxes yet, or "" if it takes them.
func (i *initialInspection) full() string {
	select {
	case <-i.done:
		return ""
	default:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.begun {
		return "its worker has not yet listed the containers that are on the host"
	}
	return fmt.Sprintf("its worker must first inspect the sandboxes already on the host: %d are left", len(i.left))
}
