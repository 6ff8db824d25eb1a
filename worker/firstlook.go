package worker

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// firstLookMost bounds how long a sandbox that cannot be looked at keeps its host from new ones: one whose history
// cannot be read, say.
const firstLookMost = 2 * time.Minute

// firstLook is the look at everything that is on the host when a tenure begins. Until it is done, and what the
// log says is over is removed, the host takes no new sandboxes: a host that was given up, and comes back, may be
// full of what was since made elsewhere, or ended.
type firstLook struct {
	mu    sync.Mutex
	begun bool
	early map[key]bool // looked at before it was known what is on the host; nil once that is
	left  map[key]bool
	done  chan struct{}
}

func newFirstLook() *firstLook { return &firstLook{early: map[key]bool{}, done: make(chan struct{})} }

// begin says what is on the host. What is found later was made by this worker. late is called with what could not be
// looked at in time, and is waited for no longer.
func (f *firstLook) begin(found map[key][]labelled, late func(left []key)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun {
		return
	}
	f.begun, f.left = true, map[key]bool{}
	for k := range found {
		if !f.early[k] { // one of those may be waiting for the others already
			f.left[k] = true
		}
	}
	f.early = nil
	if !f.end() {
		time.AfterFunc(firstLookMost, func() { f.giveUp(late) })
	}
}

func (f *firstLook) giveUp(late func(left []key)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.left) > 0 {
		late(slices.Collect(maps.Keys(f.left)))
		clear(f.left)
		f.end()
	}
}

// looked says that nothing of a sandbox is left that should not be here, and reports whether it was the last.
func (f *firstLook) looked(k key) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.begun {
		f.early[k] = true
	}
	if !f.left[k] {
		return false
	}
	delete(f.left, k)
	return f.end()
}

func (f *firstLook) end() bool {
	if len(f.left) > 0 {
		return false
	}
	close(f.done)
	return true
}

// full says why the host takes no sandboxes, "" where it does.
func (f *firstLook) full() string {
	select {
	case <-f.done:
		return ""
	default:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.begun {
		return "its worker has not seen yet what is on it"
	}
	return fmt.Sprintf("its worker first looks at what is on it, and removes what should not be there: %d sandboxes are left", len(f.left))
}
