package worker

import (
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
)

// engineEpoch counts the times that the engine may have been replaced by another process. A container that
// ended in the epoch in which it was last seen running ended by itself; in a later one the engine may have
// ended it.
type engineEpoch struct {
	mu   sync.Mutex
	n    int64
	away bool // it was lost, and is not followed again
}

// begun says that the engine is followed from now on. Between its loss and now, one engine may have come and
// gone, so what was seen in between is of an older epoch.
func (e *engineEpoch) begun() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.away {
		e.n++
	}
	e.away = false
}

// lost says that the engine is gone.
func (e *engineEpoch) lost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.n++
	e.away = true
}

// Load returns the epoch. It is to be read before the engine is asked.
func (e *engineEpoch) Load() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n
}

// same returns nil where the engine was followed from epoch until now. Error: unavailable, with reason
// engine_restarted where another engine may have come, else engine_unavailable.
func (e *engineEpoch) same(epoch int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case epoch != e.n:
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonEngineRestarted, "the container ended with the engine")
	case e.away:
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonEngineUnavailable, "the engine is back, and its events are not followed yet")
	}
	return nil
}
