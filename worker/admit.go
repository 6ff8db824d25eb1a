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

// admissions is what the sandboxes on this host may take of it, each counted once the worker has taken it up.
// Two coordinators that both believe to schedule may assign more than there is; the worker, which is one, has
// one order of what it took, and gives back what came too late.
type admissions struct {
	mu   sync.Mutex
	held map[key]protocol.Totals
}

func newAdmissions() *admissions { return &admissions{held: map[key]protocol.Totals{}} }

// offer is what a worker has for sandboxes; Disk 0: any.
type offer struct {
	slots        int
	memory, disk protocol.Bytes
}

// take counts a sandbox on the host, and says of what there is too little for it, "" where it is counted.
func (a *admissions) take(k key, t protocol.Totals, o offer) string {
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

// settle counts a sandbox that is on the host, whatever room there is, and lets go of what the log says is over.
func (a *admissions) settle(k key, b *protocol.Sandbox, hostID string, o decide.Inspection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, counted := a.held[k]
	there := o.Container != decide.ContainerAbsent && o.Container != decide.ContainerUnknown && !b.Resuming || o.Container == decide.ContainerRunning
	switch {
	case !holdsHost(b, hostID):
		delete(a.held, k)
	case !counted && there:
		a.held[k] = b.Spec.Totals()
	}
}

// forget is for the end of a tenure: whoever has the lock next may remove what is here.
func (a *admissions) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.held)
}

const (
	admitAgain = 100 * time.Millisecond // what has just ended may not be let go of yet
	admitTries = 3
)

// admit counts the sandbox on the host before anything is made of it, or gives it back, with the reason.
func (s *sandbox) admit(ctx context.Context, b *protocol.Sandbox) error {
	select {
	case <-s.w.firstLook.done: // what is here already comes first
	case <-ctx.Done():
		return ctx.Err()
	}
	o := offer{slots: s.w.cfg.Slots, memory: s.w.offeredMemory(), disk: s.w.offeredDisk()}
	why := s.w.admissions.take(s.key, b.Spec.Totals(), o)
	for range admitTries {
		if why == "" {
			return nil
		}
		if !backoff.Sleep(ctx, admitAgain) {
			return ctx.Err()
		}
		why = s.w.admissions.take(s.key, b.Spec.Totals(), o)
	}
	if why == "" {
		return nil
	}
	s.log.Warn("the sandbox is given back", "why", why)
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Refused(st, why) })
	if err == nil {
		err = errSuperseded
	}
	return err
}
