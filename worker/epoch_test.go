package worker

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// An engine that comes and goes before the worker follows it again is noticed: what was seen running in it
// did not end by itself.
func TestAnEngineThatIsGoneBeforeItIsFollowedEndsWhatRanInIt(t *testing.T) {
	var e engineEpoch
	e.begun()
	first := e.Load()
	if err := e.same(first); err != nil {
		t.Errorf("an engine that stays: %v", err)
	}
	e.lost()
	if why := protocol.AsError(e.same(first)); why == nil || why.Reason != protocol.ReasonEngineRestarted {
		t.Errorf("after a loss: %v", why)
	}
	second := e.Load() // the sandbox is started again, before the engine is followed
	if why := protocol.AsError(e.same(second)); why == nil || why.Reason != protocol.ReasonEngineUnavailable {
		t.Errorf("an engine that is not followed: %v", why)
	}
	e.begun()
	if why := protocol.AsError(e.same(second)); why == nil || why.Reason != protocol.ReasonEngineRestarted {
		t.Errorf("what was seen before the engine was followed again: %v", why)
	}
	if err := e.same(e.Load()); err != nil {
		t.Errorf("what was seen since: %v", err)
	}
}
