package worker

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
)

func TestAWorkerTakesWhatItHasRoomForInItsOwnOrder(t *testing.T) {
	a, o := newAdmissions(), offer{slots: 3, memory: 10 << 30, disk: 10 << 30}
	here := func(name string, s protocol.SandboxState, assigned bool) *protocol.Sandbox {
		return &protocol.Sandbox{ID: name, HostID: "h1", State: s, Assigned: assigned, Spec: protocol.SandboxSpec{Memory: 4 << 30}}
	}
	for _, step := range []struct {
		name string
		t    protocol.Totals
		want string
	}{
		{"a", protocol.Totals{Memory: 4 << 30, Disk: 6 << 30}, ""},
		{"a", protocol.Totals{Memory: 4 << 30}, ""}, // taken up again
		{"b", protocol.Totals{Memory: 7 << 30}, "7GiB of memory are wanted, 6GiB of 10GiB are free"},
		{"b", protocol.Totals{Memory: 1 << 30, Disk: 5 << 30}, "5GiB of disk are wanted, 4GiB of 10GiB are free"},
		{"b", protocol.Totals{Memory: 1 << 30}, ""},
		{"c", protocol.Totals{Memory: 5 << 30}, ""},
		{"d", protocol.Totals{}, "all of its 3 slots are taken"},
	} {
		if got := a.take(box(step.name), step.t, o); got != step.want {
			t.Errorf("%s: want %q, got %q", step.name, step.want, got)
		}
	}
	a.settle(box("b"), here("b", protocol.StateStopped, false), "h1", decide.Inspection{Container: decide.ContainerExited})
	if why := a.take(box("d"), protocol.Totals{}, o); why != "" {
		t.Errorf("in place of what was stopped: %s", why)
	}
	a.settle(box("d"), here("d", protocol.StatePending, true), "h2", decide.Inspection{Container: decide.ContainerAbsent})
	if len(a.held) != 2 {
		t.Errorf("what is another host's is counted: %v", a.held)
	}
	// What runs already is counted, whatever room there is; what is resumed, when it is.
	a.settle(box("runs"), here("runs", protocol.StateReady, true), "h1", decide.Inspection{Container: decide.ContainerRunning})
	a.settle(box("runs-too"), here("runs-too", protocol.StateReady, true), "h1", decide.Inspection{Container: decide.ContainerRunning})
	resumed := here("resumed", protocol.StatePending, true)
	resumed.Resuming = true
	a.settle(box("resumed"), resumed, "h1", decide.Inspection{Container: decide.ContainerExited})
	if _, counted := a.held[box("resumed")]; counted || len(a.held) != 4 {
		t.Errorf("counted: %v", a.held)
	}
}

func TestAHostTakesNothingNewBeforeItsFirstLook(t *testing.T) {
	f := newFirstLook()
	if f.full() == "" {
		t.Error("it does before anything is known")
	}
	f.begin(map[key][]labelled{box("a"): nil, box("b"): nil}, nil)
	for _, k := range []key{box("a"), box("a"), box("later")} { // one is looked at again
		if f.looked(k) || f.full() == "" {
			t.Errorf("it does while one is left, after %v", k)
		}
	}
	if !f.looked(box("b")) || f.full() != "" {
		t.Error("it does not afterwards")
	}
	f.begin(map[key][]labelled{box("c"): nil}, nil)
	if f.full() != "" {
		t.Error("it does not after a later look")
	}
	stuck := newFirstLook()
	stuck.begin(map[key][]labelled{box("a"): nil}, nil)
	if stuck.giveUp(func(left []key) { t.Log(left) }); stuck.full() != "" || stuck.looked(box("a")) {
		t.Error("one that cannot be looked at keeps it for ever")
	}
	early := newFirstLook() // the engine did not say what is there, and a create that was told of waits already
	early.looked(box("a"))
	early.begin(map[key][]labelled{box("a"): nil, box("b"): nil}, nil)
	if early.full() == "" || !early.looked(box("b")) || early.full() != "" {
		t.Error("what was looked at before is waited for, or nothing is")
	}
	empty := newFirstLook()
	if empty.begin(nil, nil); empty.full() != "" {
		t.Error("an empty host does not")
	}
}
