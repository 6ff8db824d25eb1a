package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
)

// refreshes lets concurrent callers share refreshes of journals. Callers that arrive while a journal is being refreshed
// wait for the next refresh, because the present refresh may miss events that were appended after its beginning. The
// next refresh serves all callers that wait.
type refreshes struct {
	mu      sync.Mutex
	pending map[key]*refresh
}

type refresh struct {
	next *round // nil: no caller waits
}

type round struct {
	done chan struct{}
	err  error
}

// refresh waits until the journal was refreshed. The refresh begins after the call, so it reads everything that was in
// the log at the call.
func (r *refreshes) refresh(ctx context.Context, k key, j *jetstream.Journal, within time.Duration) error {
	r.mu.Lock()
	f := r.pending[k]
	if f == nil {
		f = &refresh{}
		if r.pending == nil {
			r.pending = map[key]*refresh{}
		}
		r.pending[k] = f
		go r.run(context.WithoutCancel(ctx), k, j, f, within)
	}
	if f.next == nil {
		f.next = &round{done: make(chan struct{})}
	}
	mine := f.next
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *refreshes) run(ctx context.Context, k key, j *jetstream.Journal, f *refresh, within time.Duration) {
	for {
		r.mu.Lock()
		now := f.next
		if f.next = nil; now == nil {
			delete(r.pending, k)
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		bounded, cancel := context.WithTimeout(ctx, within)
		now.err = j.Refresh(bounded)
		cancel()
		close(now.done)
	}
}
