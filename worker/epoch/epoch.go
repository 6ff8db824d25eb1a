package epoch

import (
	"context"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
)

// Epoch counts how often another process may have become the engine. A container that ended in the epoch in which it
// was last known to run ended by itself; in a later one the engine may have ended it.
type Epoch struct {
	mu   sync.Mutex
	n    int64
	lost bool // the stream of events ended, and there is no new one yet
}

// Begin records that the engine's events are followed from now on. One engine may have come and gone between its loss
// and now, so inspections in between belong to an older epoch.
func (e *Epoch) Begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost {
		e.n++
	}
	e.lost = false
}

// Lost records that the stream of events ended.
func (e *Epoch) Lost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.n++
	e.lost = true
}

// Load returns the epoch. Read it before you ask the engine.
func (e *Epoch) Load() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n
}

// Same returns nil if the engine's events were followed from epoch until now. Error: unavailable, with reason
// engine_restarted if another engine may have come, else engine_unavailable.
func (e *Epoch) Same(epoch int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case epoch != e.n:
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonEngineRestarted, "the container ended with the engine")
	case e.lost:
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonEngineUnavailable,
			"the engine is back, and its events are not followed yet")
	}
	return nil
}

// EndedByItself returns nil if what ended since epoch ended by itself: the engine answers, and was never away. Its
// errors are those of ping and of Same.
func (e *Epoch) EndedByItself(ctx context.Context, ping func(context.Context) error, epoch int64) error {
	if err := ping(ctx); err != nil {
		return err
	}
	return e.Same(epoch)
}
