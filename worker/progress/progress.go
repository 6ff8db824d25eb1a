// Package progress appends the phases of a create to a sandbox's history in as few messages as possible. Each message
// costs a durable write. The phases of a quick create are appended together with its result; a slow create appends them
// while it lasts.
//
//	Enter ─► pending phases ─┬─► with ready or failed, in one message
//	                         └─► after First, and then at most once per Pause, in a message of their own
//
// The events are the same either way, each with its own number and the time at which its phase began.
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
	First = 500 * time.Millisecond // from the start of a create to the first message of its own for phases
	Pause = 5 * time.Second        // minimum time between two such messages
)

// names are the phases in order.
var names = []string{"image", "network", "container", "start"}

// Phases are the phases of one create on one host, over all its attempts. Its methods may be called concurrently.
type Phases struct {
	appending sync.Mutex // one message at a time, so that no phase is appended twice

	mu      sync.Mutex
	current string           // the newest phase
	pending []protocol.Event // phases that are not appended yet
	next    time.Time        // earliest time of the next message of their own
	entered chan struct{}    // buffered; signals that pending is not empty
}

// Begin returns the phases of a create, after the phase that the log has: "", or a phase of an earlier attempt.
func Begin(logged string) *Phases {
	return &Phases{current: logged, next: time.Now().Add(First), entered: make(chan struct{}, 1)}
}

// Enter records that a phase begins, at a time by the store's clock. It ignores the newest phase and earlier ones.
func (p *Phases) Enter(phase string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Index(names, phase) <= slices.Index(names, p.current) {
		return
	}
	p.current = phase
	p.pending = append(p.pending, protocol.Event{Kind: protocol.SandboxPreparing, Time: at,
		Phase: &protocol.SandboxDetails{Phase: phase}})
	select {
	case p.entered <- struct{}{}:
	default:
	}
}

// Current returns the newest phase, "" before the first.
func (p *Phases) Current() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Append calls append with the pending phases, which append puts before its own events in one message. It calls append
// once at a time. If append returns an error, nothing was appended and the phases stay pending.
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

// Missing returns the pending phases after the newest phase in the log. A message may have been stored although its
// acknowledgement was lost.
func Missing(pending []protocol.Event, logged string) []protocol.Event {
	i := 0
	for i < len(pending) && slices.Index(names, pending[i].Phase.Phase) <= slices.Index(names, logged) {
		i++
	}
	return slices.Clone(pending[i:])
}

// Run calls tell whenever phases are due for a message of their own, until ctx ends. tell calls Tell; if nothing was
// appended, Run calls it again after First.
func (p *Phases) Run(ctx context.Context, tell func()) {
	for p.await(ctx) {
		tell()
		p.mu.Lock()
		if earliest := time.Now().Add(First); p.next.Before(earliest) {
			p.next = earliest
		}
		p.mu.Unlock()
	}
}

// await waits until phases are due for a message. It returns false if ctx ended first.
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
