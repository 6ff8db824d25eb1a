// Package progress appends the phases of a create to a sandbox's history in as few messages as possible, because each
// message costs a durable write. The phases of a quick create are appended together with its result. The phases of a
// slow create are appended before the create ends, in separate messages.
//
//	Enter ─► pending phases ─┬─► quick create: in one message with ready or failed
//	                         └─► slow create: a separate message after First, and then at most one per Pause
//
// The events are the same in both cases. Each has its own number and the time at which its phase began.
//
// The package imports protocol.
package progress

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	First = 500 * time.Millisecond // time from the start of a create to the first separate message for its phases
	Pause = 5 * time.Second        // minimum time between two separate messages
)

// names are the names of the phases, in order.
var names = []string{"image", "network", "container", "start"}

// Phases are the phases of one create on one host, for all tries of the create. Its methods may be called concurrently.
type Phases struct {
	appending sync.Mutex // held by Append, so that no phase is appended twice

	mu      sync.Mutex
	current string           // the newest phase
	pending []protocol.Event // phases that are not appended yet
	next    time.Time        // earliest time of the next separate message
	entered chan struct{}    // buffered; signals that pending is not empty
}

// Begin returns the phases of a create. logged is the newest phase in the log, from an earlier try, or "".
func Begin(logged string) *Phases {
	return &Phases{current: logged, next: time.Now().Add(First), entered: make(chan struct{}, 1)}
}

// Enter records that a phase begins, at a time of the store's clock. If this phase or a later one has already begun,
// Enter does nothing.
func (p *Phases) Enter(phase string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Index(names, phase) <= slices.Index(names, p.current) {
		return
	}
	p.current = phase
	p.pending = append(p.pending, protocol.Event{Kind: protocol.SandboxPreparing, Time: at,
		Details: &protocol.SandboxDetails{Phase: phase}})
	select {
	case p.entered <- struct{}{}:
	default:
	}
}

// Current returns the newest phase, or "" if no phase has begun.
func (p *Phases) Current() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Append calls the given function with the pending phases. The function must append one message that has these phases,
// followed by the function's own events. Concurrent calls of Append call their functions one after the other. If the
// function returns an error, the phases stay pending.
func (p *Phases) Append(append func(pending []protocol.Event) error) error {
	p.appending.Lock()
	defer p.appending.Unlock()
	p.mu.Lock()
	pending := slices.Clone(p.pending)
	p.mu.Unlock()
	if err := append(pending); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending, p.next = p.pending[len(pending):], time.Now().Add(Pause)
	return nil
}

// Missing returns the pending phases that come after the newest phase in the log, which is the parameter logged. The
// log may already have pending phases if a message was stored but its acknowledgement was lost.
func Missing(pending []protocol.Event, logged string) []protocol.Event {
	i := 0
	for i < len(pending) && slices.Index(names, pending[i].Details.Phase) <= slices.Index(names, logged) {
		i++
	}
	return slices.Clone(pending[i:])
}

// Run calls report whenever pending phases are due for a separate message, until ctx ends. report must call Append. If
// the phases stay pending, Run calls report again after First.
func (p *Phases) Run(ctx context.Context, report func()) {
	for p.await(ctx) {
		report()
		p.mu.Lock()
		if earliest := time.Now().Add(First); p.next.Before(earliest) {
			p.next = earliest
		}
		p.mu.Unlock()
	}
}

// await waits until pending phases are due for a separate message. It returns false if ctx ended first.
func (p *Phases) await(ctx context.Context) bool {
	for {
		p.mu.Lock()
		some, wait := len(p.pending) > 0, time.Until(p.next)
		p.mu.Unlock()
		if some && wait <= 0 {
			return true
		}
		var due <-chan time.Time
		if some {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return false
		case <-p.entered:
		case <-due:
		}
	}
}
