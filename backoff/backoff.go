// Package backoff times retries: the pause before the next attempt doubles up to a maximum.
//
//	pause := backoff.New(100*time.Millisecond, 5*time.Second)
//	for try() != nil {
//		if !pause.Wait(ctx) {
//			return ctx.Err()
//		}
//	}
//
// A loop that also waits for other things takes the pause from Next and waits itself. Pauses have no
// jitter. The package imports nothing of this module.
package backoff

import (
	"context"
	"time"
)

// Backoff is the pause before the next attempt. It is not safe for concurrent use.
type Backoff struct {
	first, most time.Duration
	next        time.Duration
}

// New returns a backoff whose pauses are first, 2*first, 4*first and so on, up to most.
func New(first, most time.Duration) Backoff {
	return Backoff{first: first, most: most, next: first}
}

// Next returns the pause before the next attempt and doubles the pause after it.
func (b *Backoff) Next() time.Duration {
	pause := b.next
	b.next = min(2*pause, b.most)
	return pause
}

// Reset begins again with the first pause. Call it after a success.
func (b *Backoff) Reset() { b.next = b.first }

// Wait sleeps for the next pause. It returns false if ctx ended first.
func (b *Backoff) Wait(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Sleep sleeps for d. It returns false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
