package worker

import (
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

// box returns the key of a sandbox.
func box(id string) key { return key{Tenant: "default", ID: id} }

// mustTake fails the test unless the sandbox gets these GPUs.
func mustTake(t *testing.T, g *abilities.GPUs, id string, n int, want ...string) {
	t.Helper()
	if got, err := g.Take(box(id), n); err != nil || !slices.Equal(got, want) {
		t.Errorf("%s got %v, want %v: %v", id, got, want, err)
	}
}

func refusedGPU(t *testing.T, err error) {
	t.Helper()
	if e := protocol.AsError(err); err == nil || e.Code != protocol.ResourceExhausted || e.Reason != protocol.ReasonNoGPU || !passing(err) {
		t.Errorf("got %v, want a temporary refusal", err)
	}
}

func TestGPUsAreHeldWhileTheSandboxHasItsHost(t *testing.T) {
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
		w := &worker{hostID: "h1", gpus: abilities.NewGPUs(1)}
		w.gpus.Found(nil)
		mustTake(t, w.gpus, "a", 1, "0")
		w.settleGPUs(box("a"), &c.b, c.seen)
		if _, err := w.gpus.Take(box("b"), 1); (err != nil) != c.holds {
			t.Errorf("%s: held: %v, want %v", name, err != nil, c.holds)
		}
	}
}

func TestFindsTheGPUsOfAdoptedContainers(t *testing.T) {
	w := &worker{gpus: abilities.NewGPUs(3), sandboxes: map[key]*sandbox{box("stopped"): nil}}
	_, err := w.gpus.Take(box("early"), 1) // findGPUs has not run yet
	refusedGPU(t, err)
	refusedGPU(t, w.gpus.Claim(box("early"), []string{"0"}))
	made := func(id, gpus string, running bool) docker.Container {
		return docker.Container{Running: running, Labels: map[string]string{docker.LabelTenant: "default", docker.LabelSandbox: id, docker.LabelGPUs: gpus}}
	}
	w.findGPUs([]docker.Container{
		made("runs", "1", true), made("to-be-looked-at", "2", false), made("stopped", "0", false), made("without", "", true),
		{Running: true, Labels: map[string]string{docker.LabelGPUs: "0"}}, // of no sandbox
	})
	mustTake(t, w.gpus, "new", 1, "0")
	_, err = w.gpus.Take(box("newer"), 1)
	refusedGPU(t, err)
	w.findGPUs([]docker.Container{made("runs", "1", true), made("was-stopped", "1", false)})
	w.settleGPUs(box("was-stopped"), &protocol.Sandbox{State: protocol.StateStopped, HostID: "h1"}, decide.ContainerExited)
	refusedGPU(t, w.gpus.Claim(box("was-stopped"), []string{"1"}))
	w.gpus.Forget()
	w.findGPUs(nil) // in the next tenure all containers are gone
	mustTake(t, w.gpus, "newer", -1, "0", "1", "2")
}

func TestAContainerIsLabelledWithItsGPUs(t *testing.T) {
	s := &sandbox{w: &worker{conn: &jetstream.Conn{}}, key: box("a")}
	spec := s.containerSpec(&protocol.Sandbox{Spec: protocol.SandboxSpec{GPUs: "2"}}, hostdir.Dir{}, docker.Image{}, hostfiles.Bindings{}, []string{"0", "2"})
	if !slices.Equal(spec.GPUs, []string{"0", "2"}) || !slices.Equal(labelledGPUs(spec.Labels), spec.GPUs) {
		t.Errorf("the container has %v, and the label %q", spec.GPUs, spec.Labels[docker.LabelGPUs])
	}
	spec = s.containerSpec(&protocol.Sandbox{}, hostdir.Dir{}, docker.Image{}, hostfiles.Bindings{}, nil)
	if _, labelled := spec.Labels[docker.LabelGPUs]; labelled || len(spec.GPUs) > 0 {
		t.Errorf("a container without GPUs: %+v", spec)
	}
}
