package sandbox

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/service"
)

func box(id string) protocol.SandboxKey { return protocol.SandboxKey{Tenant: "default", ID: id} }

func TestGPUsAreHeldWhileTheSandboxHasItsHost(t *testing.T) {
	for name, c := range map[string]struct {
		b         protocol.Sandbox
		container decide.ContainerState
		holds     bool
	}{
		"being made": {protocol.Sandbox{State: protocol.StatePending, HostID: "h1", Assigned: true},
			decide.ContainerAbsent, true},
		"to be started again": {protocol.Sandbox{State: protocol.StateReady, HostID: "h1", Assigned: true},
			decide.ContainerExited, true},
		"being deleted": {protocol.Sandbox{State: protocol.StateDeleting, HostID: "h1"},
			decide.ContainerExited, true},
		"failed and not halted yet": {protocol.Sandbox{State: protocol.StateFailed, HostID: "h1"},
			decide.ContainerRunning, true},
		"whose engine did not answer": {protocol.Sandbox{State: protocol.StateStopped, HostID: "h1"},
			decide.ContainerUnknown, true},
		"stopped": {protocol.Sandbox{State: protocol.StateStopped, HostID: "h1"},
			decide.ContainerExited, false},
		"waiting for its resume": {protocol.Sandbox{State: protocol.StatePending, HostID: "h1", Resuming: true},
			decide.ContainerExited, false},
		"made, and assigned elsewhere": {protocol.Sandbox{State: protocol.StateReady, HostID: "h2", Assigned: true},
			decide.ContainerMade, false},
		"never made, and assigned elsewhere": {protocol.Sandbox{State: protocol.StatePending, HostID: "h2", Assigned: true},
			decide.ContainerAbsent, false},
		"running here, and assigned elsewhere": {protocol.Sandbox{State: protocol.StateReady, HostID: "h2", Assigned: true},
			decide.ContainerRunning, true},
	} {
		gpus := abilities.NewGPUs(1)
		gpus.Found(nil)
		s := New(&Host{Host: service.Host{ID: "h1"}, GPUs: gpus}, box("a"), slog.New(slog.DiscardHandler))
		if got, err := gpus.Take(s.key, 1); err != nil || !slices.Equal(got, []string{"0"}) {
			t.Fatalf("sandbox a got the GPUs %v and the error %v, want GPU 0", got, err)
		}
		s.local.Container = c.container
		settleGPUs(s, &c.b)
		if _, err := gpus.Take(box("b"), 1); (err != nil) != c.holds {
			t.Errorf("a sandbox %s: it holds its GPU: %v, want %v", name, err != nil, c.holds)
		}
	}
}

func TestAContainerIsLabelledWithItsGPUs(t *testing.T) {
	host := &Host{Host: service.Host{NameServers: func(*protocol.SandboxSpec) []string { return nil }}}
	s := New(host, box("a"), slog.New(slog.DiscardHandler))
	c := &creation{s: s, b: &protocol.Sandbox{Spec: protocol.SandboxSpec{GPUs: "2"}}}
	spec, err := c.containerSpec([]string{"0", "2"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(spec.GPUs, []string{"0", "2"}) || !slices.Equal(GPUsOf(spec.Labels), spec.GPUs) {
		t.Errorf("the container has the GPUs %v, and its label says %q", spec.GPUs, spec.Labels[docker.LabelGPUs])
	}
	spec, err = (&creation{s: s, b: &protocol.Sandbox{}}).containerSpec(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, labelled := spec.Labels[docker.LabelGPUs]; labelled || len(spec.GPUs) > 0 {
		t.Errorf("a container without GPUs has GPUs or a label for them: %+v", spec)
	}
}
