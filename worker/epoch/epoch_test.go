package epoch

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// The worker notices an engine that came and went before its events were followed again. A container that ran in it did
// not end by itself.
func TestAnEngineThatCameAndWentUnfollowedIsNoticed(t *testing.T) {
	var e Epoch
	e.Begin()
	first := e.Load()
	if err := e.Same(first); err != nil {
		t.Errorf("an engine that was never away: %v", err)
	}
	e.Lost()
	if why := protocol.AsError(e.Same(first)); why == nil || why.Reason != protocol.ReasonEngineRestarted {
		t.Errorf("after a loss: %v", why)
	}
	second := e.Load() // the sandbox is started again, before the engine is followed
	if why := protocol.AsError(e.Same(second)); why == nil || why.Reason != protocol.ReasonEngineUnavailable {
		t.Errorf("an engine that is not followed: %v", why)
	}
	e.Begin()
	if why := protocol.AsError(e.Same(second)); why == nil || why.Reason != protocol.ReasonEngineRestarted {
		t.Errorf("a container inspected before the engine was followed again: %v", why)
	}
	if err := e.Same(e.Load()); err != nil {
		t.Errorf("a container inspected since: %v", err)
	}
}
