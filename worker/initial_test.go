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
		t.Error("the host takes sandboxes before its containers were listed")
	}
	i.begin(keys("a", "b"), nil)
	for _, k := range keys("a", "a", "later") { // a settles twice; "later" was not found on the host
		if i.settled(k) || i.full() == "" {
			t.Errorf("the host takes sandboxes after %v settled, although b has not settled", k)
		}
	}
	if !i.settled(box("b")) || i.full() != "" {
		t.Error("the host takes no sandboxes, although all that were found have settled")
	}
	i.begin(keys("c"), nil)
	if i.full() != "" {
		t.Error("the host takes no sandboxes after a second call of begin")
	}

	stuck := newInitialInspection()
	stuck.begin(keys("a"), nil)
	if stuck.giveUp(func(left []protocol.SandboxKey) { t.Log(left) }); stuck.full() != "" || stuck.settled(box("a")) {
		t.Error("the host takes no sandboxes after giving up on one that cannot be inspected")
	}

	early := newInitialInspection() // a sandbox may settle while the engine does not answer, before begin is called
	early.settled(box("a"))
	early.begin(keys("a", "b"), nil)
	if early.full() == "" || !early.settled(box("b")) || early.full() != "" {
		t.Error("the host should wait for b, which was found, and not for a, which settled before begin")
	}

	empty := newInitialInspection()
	if empty.begin(nil, nil); empty.full() != "" {
		t.Error("an empty host takes no sandboxes")
	}
}
