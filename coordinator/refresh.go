package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
)

// refreshes shares looks at the log: of all who want to know what it has now of a sandbox, one asks. Who comes while
// it is on its way waits for the next one, since what was appended meanwhile may not be in the first.
type refreshes struct {
	mu sync.Mutex
	of map[key]*refresh
}

type refresh struct {
	next *round // nil: nobody waits for one
}

type round struct {
	done chan struct{}
	err  error
}

// refresh has a journal read what is new, in a look that begins after the call.
func (r *refreshes) refresh(ctx context.Context, k key, j *jetstream.Journal, within time.Duration) error {
	r.mu.Lock()
	f := r.of[k]
	if f == nil {
		f = &refresh{}
		if r.of == nil {
			r.of = map[key]*refresh{}
		}
		r.of[k] = f
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
			delete(r.of, k)
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
