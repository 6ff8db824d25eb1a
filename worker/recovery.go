package worker

import (
	"context"
	"sync"
	"time"
)

// recovery wakes those who try again after a pause that grows, once the Engine or NATS is back: what they
// waited for may have been that.
type recovery struct {
	mu   sync.Mutex
	back chan struct{} // closed at the next one
}

// next is closed at the next recovery. It is to be asked for before the try.
func (r *recovery) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.back == nil {
		r.back = make(chan struct{})
	}
	return r.back
}

func (r *recovery) happened() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.back != nil {
		close(r.back)
		r.back = nil
	}
}

// awaitWake waits until ready is closed, until d has passed, or until ctx ends.
func awaitWake(ctx context.Context, ready <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-ready:
	case <-t.C:
	}
}
