package epoch

import (
	"context"
	"sync"
	"time"
)

// Recovery ends the pauses between retries once the engine or NATS is back, because the next try may then succeed.
type Recovery struct {
	mu   sync.Mutex
	back chan struct{} // closed at the next recovery
}

// Next returns a channel that is closed at the next recovery. A loop that retries calls Next before each try, and
// passes the channel to [Pause] if the try fails. A recovery that happens during the try then ends the pause at once.
func (r *Recovery) Next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.back == nil {
		r.back = make(chan struct{})
	}
	return r.back
}

// Happened records a recovery: it ends all pauses.
func (r *Recovery) Happened() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.back != nil {
		close(r.back)
		r.back = nil
	}
}

// Pause waits until the channel back is closed, until d has passed, or until ctx ends.
func Pause(ctx context.Context, back <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-back:
	case <-t.C:
	}
}
