package worker

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAHostTakesNoSandboxBeforeItsInitialInspection(t *testing.T) {
	keys := func(ids ...string) (keys []protocol.SandboxKey) {
		for _, id := range ids {
			keys = append(keys, box(id))
		}
		return keys
	}
	i := newInitialInspection()
	if i.full() == "" {
		t.Error("the host takes sandboxes before anything is listed")
	}
	i.begin(keys("a", "b"), nil)
	for _, k := range keys("a", "a", "later") { // one is inspected twice
		if i.settled(k) || i.full() == "" {
			t.Errorf("the host takes sandboxes while one is left, after %v", k)
		}
	}
	if !i.settled(box("b")) || i.full() != "" {
		t.Error("the host takes no sandboxes afterwards")
	}
	i.begin(keys("c"), nil)
	if i.full() != "" {
		t.Error("the host takes no sandboxes after a later inspection")
	}

	stuck := newInitialInspection()
	stuck.begin(keys("a"), nil)
	if stuck.giveUp(func(left []protocol.SandboxKey) { t.Log(left) }); stuck.full() != "" || stuck.settled(box("a")) {
		t.Error("a sandbox that cannot be inspected keeps the host from others for ever")
	}

	early := newInitialInspection() // the engine did not answer yet, and the create of a new sandbox waits already
	early.settled(box("a"))
	early.begin(keys("a", "b"), nil)
	if early.full() == "" || !early.settled(box("b")) || early.full() != "" {
		t.Error("the host waits for a sandbox that was settled early, or for none")
	}

	empty := newInitialInspection()
	if empty.begin(nil, nil); empty.full() != "" {
		t.Error("an empty host takes no sandboxes")
	}
}
