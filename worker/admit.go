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

// admissions count the resources that are promised to the sandboxes on this host, each from when the worker admits it.
// Two coordinators that both believe to lead may assign more than the host has. The worker admits sandboxes in one
// order, and gives back those that come too late.
type admissions struct {
	mu   sync.Mutex
	held map[protocol.SandboxKey]protocol.Totals
}

func newAdmissions() *admissions { return &admissions{held: map[protocol.SandboxKey]protocol.Totals{}} }

// offer is what a worker has for sandboxes; disk 0: no limit.
type offer struct {
	slots        int
	memory, disk protocol.Bytes
}

// take counts a sandbox on the host. If the host has too little room, take returns an explanation and counts nothing.
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

// settle counts a sandbox that exists on the host already, even if there is no room, and stops counting one that has
// ended in the log.
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

// clear forgets all sandboxes at the end of a tenure: the next holder of the lock may remove them.
func (a *admissions) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.held)
}

const (
	admitPause = 100 * time.Millisecond // a sandbox that has just ended may still be counted
	admitTries = 3
)

// admission admits sandboxes for the worker. It is a sandbox.Admission.
type admission struct{ w *worker }

// Admit counts a sandbox on the host, once everything that is on the host already was inspected. If there is no room
// for it, Admit returns an explanation.
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
