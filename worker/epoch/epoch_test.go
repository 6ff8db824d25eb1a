package epoch

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// An engine process may start a container and end before the worker follows its events. The worker must not conclude
// that the container ended by itself.
func TestAnEngineThatEndedBeforeItsEventsWereFollowedIsNoticed(t *testing.T) {
	var e Epoch
	e.Begin()
	first := e.Load()
	if err := e.Same(first); err != nil {
		t.Errorf("while the engine's events are followed: %v, want no error", err)
	}
	e.Lost()
	if why := protocol.AsError(e.Same(first)); why == nil || why.Reason != protocol.ReasonEngineRestarted {
		t.Errorf("an epoch before the events were lost: %v, want reason engine_restarted", why)
	}
	second := e.Load() // a container is started before the engine's events are followed again
	if why := protocol.AsError(e.Same(second)); why == nil || why.Reason != protocol.ReasonEngineUnavailable {
		t.Errorf("before the events are followed again: %v, want reason engine_unavailable", why)
	}
	e.Begin()
	if why := protocol.AsError(e.Same(second)); why == nil || why.Reason != protocol.ReasonEngineRestarted {
		t.Errorf("an epoch read before the events were followed again: %v, want reason engine_restarted", why)
	}
	if err := e.Same(e.Load()); err != nil {
		t.Errorf("an epoch read after the events were followed again: %v, want no error", err)
	}
}
