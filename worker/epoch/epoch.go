package epoch

import (
	"context"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
)

// Epoch counts the times that the engine's process may have been replaced. If a container ends in the same epoch in
// which it was last known to run, it has ended by itself. If the epoch has changed since, the engine may have ended the
// container.
type Epoch struct {
	mu   sync.Mutex
	n    int64
	lost bool // the stream of events ended, and there is no new stream yet
}

// Begin records that the worker follows the engine's events from now on. After a loss of the events, Begin starts a new
// epoch, because another engine process may have started and ended unnoticed.
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

// Load returns the epoch. To learn in which epoch a container is inspected or started, call Load before sending that
// request to the engine.
func (e *Epoch) Load() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n
}

// Same returns nil if the engine's events were followed without a gap from the given epoch until now. Otherwise it
// returns an error with code unavailable. The reason is engine_restarted if the engine's process may have been
// replaced, and engine_unavailable if the worker does not follow the engine's events at present.
func (e *Epoch) Same(epoch int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case epoch != e.n:
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonEngineRestarted, "the container ended with the engine")
	case e.lost:
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonEngineUnavailable,
			"the worker does not follow the engine's events at present")
	}
	return nil
}

// EndedByItself is called for a container that has ended since the given epoch. It returns nil if the container ended
// by itself: the engine answers, and its events were followed without a gap. Otherwise it returns the error of ping or
// of Same.
func (e *Epoch) EndedByItself(ctx context.Context, ping func(context.Context) error, epoch int64) error {
	if err := ping(ctx); err != nil {
		return err
	}
	return e.Same(epoch)
}
