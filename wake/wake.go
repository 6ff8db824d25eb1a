// Package wake wakes a goroutine that sleeps until there is work.
//
//	var ready = wake.New()
//
//	go func() {           // the loop
//		for ready.Wait(ctx) {
//			doAllWork()
//		}
//	}()
//
//	addWork()
//	ready.Wake()          // never blocks; any number of calls while the loop is busy count as one
//
// The package imports nothing of this module.
package wake

import (
	"context"
	"time"
)

// Signal wakes one loop. It remembers one wake-up: if the loop is busy when Wake is called, it runs once more. Several
// calls before that run count as one. Record the work first, then call Wake.
//
// A Signal is a channel and can be received from in a select. Send to it with Wake only, and do not
// close it.
type Signal chan struct{}

// New returns a signal that is not set.
func New() Signal { return make(Signal, 1) }

// Wake wakes the loop, or makes it run once more if it is busy. It does not block.
func (s Signal) Wake() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Wait waits for a wake-up and takes it. It returns false if ctx ended first.
func (s Signal) Wait(ctx context.Context) bool { return s.WaitFor(ctx, 0) }

// WaitFor waits for a wake-up and takes it. If d is above 0, it waits for at most d. It returns false if ctx ended
// first, and true after a wake-up or after d.
func (s Signal) WaitFor(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	var elapsed <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		elapsed = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-s:
	case <-elapsed:
	}
	return true
}

// Pending reports whether there is a wake-up that the loop has not taken yet.
func (s Signal) Pending() bool { return len(s) > 0 }
