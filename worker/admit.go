package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// admissions count the resources promised to the sandboxes on this host. A sandbox counts from the moment the worker
// admits it. Two coordinators that both believe they lead may assign more sandboxes than fit on the host. The worker
// therefore admits sandboxes one at a time, and gives back sandboxes that no longer fit.
type admissions struct {
	mu   sync.Mutex
	held map[protocol.SandboxKey]protocol.Totals
}

func newAdmissions() *admissions { return &admissions{held: map[protocol.SandboxKey]protocol.Totals{}} }

// offer is the capacity that a worker has for sandboxes. A disk of 0 means no limit.
type offer struct {
	slots        int
	memory, disk protocol.Bytes
}

// take counts a sandbox that the worker admits. If the host has too little room, take returns an explanation and counts
// nothing.
func (a *admissions) take(k protocol.SandboxKey, t protocol.Totals, o offer) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, counted := a.held[k]; counted {
		return ""
	}
	var used protocol.Totals
	for _, other := range a.held {
		used = used.Plus(other)
	}
	switch {
	case len(a.held) >= o.slots:
		return fmt.Sprintf("all of its %d slots are taken", o.slots)
	case used.Memory+t.Memory > o.memory:
		return fmt.Sprintf("%s of memory are wanted, %s of %s are free", t.Memory, max(o.memory-used.Memory, 0), o.memory)
	case o.disk > 0 && t.Disk > 0 && used.Disk+t.Disk > o.disk:
		return fmt.Sprintf("%s of disk are wanted, %s of %s are free", t.Disk, max(o.disk-used.Disk, 0), o.disk)
	}
	a.held[k] = t
	return ""
}

// settle counts a sandbox whose container already exists on the host, even if the host has no room for it. It stops
// counting a sandbox that no longer uses this host according to the log.
func (a *admissions) settle(k protocol.SandboxKey, b *protocol.Sandbox, hostID string, there decide.Inspection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, counted := a.held[k]
	exists := there.Container != decide.ContainerAbsent && there.Container != decide.ContainerUnknown
	switch {
	case !decide.HoldsHost(b, hostID):
		delete(a.held, k)
	case !counted && (exists && !b.Resuming || there.Container == decide.ContainerRunning):
		a.held[k] = b.Spec.Totals()
	}
}

// clear forgets all sandboxes at the end of a tenure, because the next holder of the lock may remove them.
func (a *admissions) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.held)
}

const (
	admitPause = 100 * time.Millisecond // pause between two tries; a sandbox that ends meanwhile may free its room
	admitTries = 3
)

// admission admits sandboxes for the worker. It implements sandbox.Admission.
type admission struct{ w *worker }

// Admit waits for the initial inspection of the host, and then counts the sandbox. If the host has too little room for
// the sandbox, Admit returns an explanation.
func (a admission) Admit(ctx context.Context, k protocol.SandboxKey, t protocol.Totals) (why string, err error) {
	w := a.w
	select {
	case <-w.initial.done:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	o := offer{slots: w.cfg.Slots, memory: w.capacity().memory(), disk: w.capacity().disk()}
	for try := 0; ; try++ {
		if why = w.admissions.take(k, t, o); why == "" || try == admitTries {
			return why, nil
		}
		if !backoff.Sleep(ctx, admitPause) {
			return "", ctx.Err()
		}
	}
}

func (a admission) Settle(k protocol.SandboxKey, b *protocol.Sandbox, hostID string, there decide.Inspection) {
	a.w.admissions.settle(k, b, hostID, there)
}
