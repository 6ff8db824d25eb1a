// Package progress says in a sandbox's history how far its create is, in as few messages as that takes. Each
// message costs a durable write, and a create that is over soon needs none of its own: its phases ride with what comes
// of it. One that lasts tells them while it lasts.
//
//	Enter ─► untold phases ─┬─► with ready or failed, in one message
//	                        └─► after First, and then at most once per Pause, in a message of their own
//
// The events are the same either way, each with its own number and the time at which its phase began.
package progress

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	First = 500 * time.Millisecond // a create goes on for so long before its phases get a message of their own
	Pause = 5 * time.Second        // between two such messages, at least
)

// names are the phases, in their order.
var names = []string{"image", "network", "container", "start"}

// Phases are those of one create on one host, over all its tries. Its methods may be called at once from several
// goroutines.
type Phases struct {
	telling sync.Mutex // one message after another, so that no phase is in two

	mu      sync.Mutex
	current string           // the newest phase
	untold  []protocol.Event // phases that no message has had
	next    time.Time        // there is no message of their own before
	entered chan struct{}    // has room for one: untold is not empty any more
}

// Begin begins with what the log knows: "", or a phase of an earlier try.
func Begin(told string) *Phases {
	return &Phases{current: told, next: time.Now().Add(First), entered: make(chan struct{}, 1)}
}

// Enter notes that a phase begins, at a time of the store. A phase that was entered before, or is before the
// newest one, is not entered again.
func (p *Phases) Enter(phase string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Index(names, phase) <= slices.Index(names, p.current) {
		return
	}
	p.current = phase
	p.untold = append(p.untold, protocol.Event{Kind: protocol.SandboxPreparing, Time: at, Phase: &protocol.SandboxDetails{Phase: phase}})
	select {
	case p.entered <- struct{}{}:
	default:
	}
}

// Current is the newest phase, "" before the first.
func (p *Phases) Current() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Tell has append put the phases that no message has had before what it appends, in one message. append is
// called once at a time, and returns an error where nothing was appended: the phases wait for the next message then.
func (p *Phases) Tell(append func(untold []protocol.Event) error) error {
	p.telling.Lock()
	defer p.telling.Unlock()
	p.mu.Lock()
	untold := slices.Clone(p.untold)
	p.mu.Unlock()
	if err := append(untold); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.untold, p.next = p.untold[len(untold):], time.Now().Add(Pause)
	return nil
}

// Missing are those of untold that a log lacks which knows of a phase: a message whose answer was lost may have
// been stored.
func Missing(untold []protocol.Event, known string) []protocol.Event {
	i := 0
	for i < len(untold) && slices.Index(names, untold[i].Phase.Phase) <= slices.Index(names, known) {
		i++
	}
	return slices.Clone(untold[i:])
}

// Run has tell called when phases are to get a message of their own, until ctx ends. tell calls Tell; what
// becomes of that does not matter here: where nothing was told it is called again after First.
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

// await waits until phases are to get a message; false for the end of ctx.
func (p *Phases) await(ctx context.Context) bool {
	for {
		p.mu.Lock()
		some, wait := len(p.untold) > 0, time.Until(p.next)
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
