package worker

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
)

func TestAWorkerAdmitsSandboxesOnlyWhileTheHostHasRoom(t *testing.T) {
	a, o := newAdmissions(), offer{slots: 3, memory: 10 << 30, disk: 10 << 30}
	here := func(name string, s protocol.SandboxState, assigned bool) *protocol.Sandbox {
		return &protocol.Sandbox{ID: name, HostID: "h1", State: s, Assigned: assigned,
			Spec: protocol.SandboxSpec{Memory: 4 << 30}}
	}
	for _, step := range []struct {
		name string
		t    protocol.Totals
		want string
	}{
		{"a", protocol.Totals{Memory: 4 << 30, Disk: 6 << 30}, ""},
		{"a", protocol.Totals{Memory: 4 << 30}, ""}, // a is already counted
		{"b", protocol.Totals{Memory: 7 << 30}, "7GiB of memory are wanted, 6GiB of 10GiB are free"},
		{"b", protocol.Totals{Memory: 1 << 30, Disk: 5 << 30}, "5GiB of disk are wanted, 4GiB of 10GiB are free"},
		{"b", protocol.Totals{Memory: 1 << 30}, ""},
		{"c", protocol.Totals{Memory: 5 << 30}, ""},
		{"d", protocol.Totals{}, "all of its 3 slots are taken"},
	} {
		if got := a.take(box(step.name), step.t, o); got != step.want {
			t.Errorf("sandbox %s: got the explanation %q, want %q", step.name, got, step.want)
		}
	}
	a.settle(box("b"), here("b", protocol.StateStopped, false), "h1", decide.Inspection{Container: decide.ContainerExited})
	if why := a.take(box("d"), protocol.Totals{}, o); why != "" {
		t.Errorf("a sandbox was refused although another one stopped: %s", why)
	}
	a.settle(box("d"), here("d", protocol.StatePending, true), "h2", decide.Inspection{Container: decide.ContainerAbsent})
	if len(a.held) != 2 {
		t.Errorf("a sandbox that was assigned to another host is still counted: %v", a.held)
	}
	// A sandbox that already runs is counted even if the host has no room for it. A resumed sandbox is not counted
	// until it is admitted.
	a.settle(box("runs"), here("runs", protocol.StateReady, true), "h1",
		decide.Inspection{Container: decide.ContainerRunning})
	a.settle(box("runs-too"), here("runs-too", protocol.StateReady, true), "h1",
		decide.Inspection{Container: decide.ContainerRunning})
	resumed := here("resumed", protocol.StatePending, true)
	resumed.Resuming = true
	a.settle(box("resumed"), resumed, "h1", decide.Inspection{Container: decide.ContainerExited})
	if _, counted := a.held[box("resumed")]; counted || len(a.held) != 4 {
		t.Errorf("the worker counts %v, want 4 sandboxes without the resumed one", a.held)
	}
}
