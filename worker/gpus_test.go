package worker

import (
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/sandbox"
)

// box returns the key of a sandbox.
func box(id string) protocol.SandboxKey { return protocol.SandboxKey{Tenant: "default", ID: id} }

// mustTake takes n GPUs for a sandbox, and fails the test unless the sandbox gets exactly the wanted GPUs.
func mustTake(t *testing.T, g *abilities.GPUs, id string, n int, want ...string) {
	t.Helper()
	if got, err := g.Take(box(id), n); err != nil || !slices.Equal(got, want) {
		t.Errorf("sandbox %s got GPUs %v (error %v), want %v", id, got, err, want)
	}
}

func refusedGPU(t *testing.T, err error) {
	t.Helper()
	if e := protocol.AsError(err); err == nil || e.Code != protocol.ResourceExhausted ||
		e.Reason != protocol.ReasonNoGPU || !hosterr.Temporary(err) {
		t.Errorf("taking a GPU: got %v, want a temporary resource_exhausted error", err)
	}
}

func TestAdoptedContainersHoldTheirGPUs(t *testing.T) {
	w := &worker{gpus: abilities.NewGPUs(3),
		mailboxes: &mailboxes{byKey: map[protocol.SandboxKey]*sandbox.Sandbox{box("stopped"): {}}}}
	e := engineWatch{w: w}
	_, err := w.gpus.Take(box("early"), 1) // findGPUs has not run yet
	refusedGPU(t, err)
	refusedGPU(t, w.gpus.Claim(box("early"), []string{"0"}))
	made := func(id, gpus string, running bool) docker.Container {
		return docker.Container{Running: running, Labels: map[string]string{docker.LabelTenant: "default",
			docker.LabelSandbox: id, docker.LabelGPUs: gpus}}
	}
	e.findGPUs([]docker.Container{
		made("runs", "1", true), made("to-be-inspected", "2", false), made("stopped", "0", false), made("without", "", true),
		{Running: true, Labels: map[string]string{docker.LabelGPUs: "0"}}, // no sandbox label: holds no GPU
	})
	mustTake(t, w.gpus, "new", 1, "0")
	_, err = w.gpus.Take(box("newer"), 1)
	refusedGPU(t, err)
	e.findGPUs([]docker.Container{made("runs", "1", true), made("was-stopped", "1", false)})
	w.gpus.Rest(box("was-stopped")) // the log says that the sandbox is stopped
	refusedGPU(t, w.gpus.Claim(box("was-stopped"), []string{"1"}))
	w.gpus.Forget()
	e.findGPUs(nil) // in the next tenure, no containers exist any more
	mustTake(t, w.gpus, "newer", -1, "0", "1", "2")
}
