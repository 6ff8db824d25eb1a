package worker

import (
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

// box names a sandbox of these tests.
func box(id string) key { return key{Tenant: "default", ID: id} }

// mustTake fails the test where so many GPUs are not to be had.
func mustTake(t *testing.T, g *gpus, id string, n int, want ...string) {
	t.Helper()
	if got, err := g.take(box(id), n); err != nil || !slices.Equal(got, want) {
		t.Errorf("%s gets %v, want %v: %v", id, got, want, err)
	}
}

// emptyHost are the GPUs of a host without sandboxes.
func emptyHost(n int) *gpus {
	g := newGPUs(n)
	g.found(nil)
	return g
}

func refusedGPU(t *testing.T, err error) {
	t.Helper()
	if e := protocol.AsError(err); err == nil || e.Code != protocol.ResourceExhausted || e.Reason != protocol.ReasonNoGPU || !passing(err) {
		t.Errorf("got %v, want a refusal that passes", err)
	}
}

func TestNoTwoSandboxesHaveAGPU(t *testing.T) {
	g := emptyHost(3)
	mustTake(t, g, "a", 1, "0")
	mustTake(t, g, "b", 1, "1")
	mustTake(t, g, "a", 1, "0") // another try of the same create
	mustTake(t, g, "none", 0)
	_, err := g.take(box("c"), 2)
	refusedGPU(t, err)
	_, err = g.take(box("c"), -1)
	refusedGPU(t, err)
	gone := &protocol.Sandbox{State: protocol.StateDeleted, HostID: "h1"}
	g.settle(box("a"), gone, "h1", decide.ContainerAbsent)
	mustTake(t, g, "c", 2, "0", "2")
	g.settle(box("b"), gone, "h1", decide.ContainerAbsent)
	g.settle(box("c"), gone, "h1", decide.ContainerAbsent)
	mustTake(t, g, "d", -1, "0", "1", "2")
	_, err = g.take(box("e"), 1)
	refusedGPU(t, err)
}

func TestAStoppedSandboxGivesItsGPUsBackLast(t *testing.T) {
	stopped := &protocol.Sandbox{State: protocol.StateStopped, HostID: "h1"}
	g := emptyHost(2)
	mustTake(t, g, "a", 1, "0")
	g.settle(box("a"), stopped, "h1", decide.ContainerExited)
	mustTake(t, g, "b", 1, "1") // a resume of the first one finds its own
	if err := g.claim(box("a"), []string{"0"}); err != nil {
		t.Errorf("a resume: %v", err)
	}
	_, err := g.take(box("c"), 1)
	refusedGPU(t, err)
	g.settle(box("a"), stopped, "h1", decide.ContainerExited)
	mustTake(t, g, "c", 1, "0") // nothing else is left
	refusedGPU(t, g.claim(box("a"), []string{"0"}))
	g.settle(box("c"), &protocol.Sandbox{State: protocol.StateDeleted}, "h1", decide.ContainerAbsent)
	if err := g.claim(box("a"), []string{"0"}); err != nil {
		t.Errorf("a resume after the other one's end: %v", err)
	}
}

func TestAGPUIsHeldForAsLongAsTheSandboxHasItsHost(t *testing.T) {
	for name, c := range map[string]struct {
		b     protocol.Sandbox
		seen  decide.ContainerState
		holds bool
	}{
		"being made":                           {protocol.Sandbox{State: protocol.StatePending, HostID: "h1", Assigned: true}, decide.ContainerAbsent, true},
		"to be started again":                  {protocol.Sandbox{State: protocol.StateReady, HostID: "h1", Assigned: true}, decide.ContainerExited, true},
		"being deleted":                        {protocol.Sandbox{State: protocol.StateDeleting, HostID: "h1"}, decide.ContainerExited, true},
		"failed and not halted yet":            {protocol.Sandbox{State: protocol.StateFailed, HostID: "h1"}, decide.ContainerRunning, true},
		"an engine that did not answer":        {protocol.Sandbox{State: protocol.StateStopped, HostID: "h1"}, decide.ContainerUnknown, true},
		"stopped":                              {protocol.Sandbox{State: protocol.StateStopped, HostID: "h1"}, decide.ContainerExited, false},
		"a resume that waits":                  {protocol.Sandbox{State: protocol.StatePending, HostID: "h1", Resuming: true}, decide.ContainerExited, false},
		"made, and assigned elsewhere":         {protocol.Sandbox{State: protocol.StateReady, HostID: "h2", Assigned: true}, decide.ContainerMade, false},
		"never made, and assigned elsewhere":   {protocol.Sandbox{State: protocol.StatePending, HostID: "h2", Assigned: true}, decide.ContainerAbsent, false},
		"running here, and assigned elsewhere": {protocol.Sandbox{State: protocol.StateReady, HostID: "h2", Assigned: true}, decide.ContainerRunning, true},
	} {
		g := emptyHost(1)
		mustTake(t, g, "a", 1, "0")
		g.settle(box("a"), &c.b, "h1", c.seen)
		if _, err := g.take(box("b"), 1); (err != nil) != c.holds {
			t.Errorf("%s: held %v, want %v", name, err != nil, c.holds)
		}
	}
}

func TestGPUsAreFoundAgainAtAdoption(t *testing.T) {
	w := &worker{gpus: newGPUs(3), sandboxes: map[key]*sandbox{box("stopped"): nil}}
	_, err := w.gpus.take(box("early"), 1) // nobody has looked yet
	refusedGPU(t, err)
	refusedGPU(t, w.gpus.claim(box("early"), []string{"0"}))
	made := func(id, gpus string, running bool) docker.Container {
		return docker.Container{Running: running, Labels: map[string]string{docker.LabelTenant: "default", docker.LabelSandbox: id, docker.LabelGPUs: gpus}}
	}
	w.findGPUs([]docker.Container{
		made("runs", "1", true), made("to-be-looked-at", "2", false), made("stopped", "0", false), made("without", "", true),
		{Running: true, Labels: map[string]string{docker.LabelGPUs: "0"}}, // nobody's
	})
	mustTake(t, w.gpus, "new", 1, "0")
	_, err = w.gpus.take(box("newer"), 1)
	refusedGPU(t, err)
	w.findGPUs([]docker.Container{made("runs", "1", true), made("was-stopped", "1", false)})
	w.gpus.settle(box("was-stopped"), &protocol.Sandbox{State: protocol.StateStopped, HostID: "h1"}, "h1", decide.ContainerExited)
	refusedGPU(t, w.gpus.claim(box("was-stopped"), []string{"1"}))
	w.gpus.forget()
	w.findGPUs(nil) // the next tenure finds that somebody removed it all
	mustTake(t, w.gpus, "newer", -1, "0", "1", "2")
}

func TestAContainerIsLabelledWithItsGPUs(t *testing.T) {
	s := &sandbox{w: &worker{conn: &jetstream.Conn{}}, key: box("a")}
	spec := s.containerSpec(&protocol.Sandbox{Spec: protocol.SandboxSpec{GPUs: "2"}}, hostdir.Dir{}, docker.Image{}, hostfiles.Bindings{}, []string{"0", "2"})
	if !slices.Equal(spec.GPUs, []string{"0", "2"}) || !slices.Equal(labelledGPUs(spec.Labels), spec.GPUs) {
		t.Errorf("it has %v, and the label %q", spec.GPUs, spec.Labels[docker.LabelGPUs])
	}
	spec = s.containerSpec(&protocol.Sandbox{}, hostdir.Dir{}, docker.Image{}, hostfiles.Bindings{}, nil)
	if _, labelled := spec.Labels[docker.LabelGPUs]; labelled || len(spec.GPUs) > 0 {
		t.Errorf("one without: %+v", spec)
	}
}
