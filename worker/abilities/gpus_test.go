package abilities

import (
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// box returns the key of a sandbox.
func box(id string) protocol.SandboxKey {
	return protocol.SandboxKey{Tenant: "default", ID: id}
}

// mustTake takes n GPUs for a sandbox, and fails the test unless the sandbox gets exactly the wanted GPUs.
func mustTake(t *testing.T, g *GPUs, id string, n int, want ...string) {
	t.Helper()
	if got, err := g.Take(box(id), n); err != nil || !slices.Equal(got, want) {
		t.Errorf("sandbox %s got GPUs %v (error %v), want %v", id, got, err, want)
	}
}

// emptyHost returns the GPUs of a host without sandboxes.
func emptyHost(n int) *GPUs {
	g := NewGPUs(n)
	g.Found(nil)
	return g
}

func refusedGPU(t *testing.T, err error) {
	t.Helper()
	if e := protocol.AsError(err); err == nil || e.Code != protocol.ResourceExhausted ||
		e.Reason != protocol.ReasonNoGPU || !hosterr.Temporary(err) {
		t.Errorf("taking a GPU: got %v, want a temporary resource_exhausted error", err)
	}
}

func TestNoTwoSandboxesHoldTheSameGPU(t *testing.T) {
	g := emptyHost(3)
	mustTake(t, g, "a", 1, "0")
	mustTake(t, g, "b", 1, "1")
	mustTake(t, g, "a", 1, "0") // the same create is retried
	mustTake(t, g, "none", 0)
	_, err := g.Take(box("c"), 2)
	refusedGPU(t, err)
	_, err = g.Take(box("c"), -1)
	refusedGPU(t, err)
	g.Release(box("a"))
	mustTake(t, g, "c", 2, "0", "2")
	g.Release(box("b"))
	g.Release(box("c"))
	mustTake(t, g, "d", -1, "0", "1", "2")
	_, err = g.Take(box("e"), 1)
	refusedGPU(t, err)
}

func TestGPUsOfStoppedSandboxesAreTakenLast(t *testing.T) {
	g := emptyHost(2)
	mustTake(t, g, "a", 1, "0")
	g.Rest(box("a"))
	mustTake(t, g, "b", 1, "1") // b does not get GPU 0, so a can be resumed
	if err := g.Claim(box("a"), []string{"0"}); err != nil {
		t.Errorf("resuming a while its GPU is free: %v", err)
	}
	_, err := g.Take(box("c"), 1)
	refusedGPU(t, err)
	g.Rest(box("a"))
	mustTake(t, g, "c", 1, "0") // no other GPU is free
	refusedGPU(t, g.Claim(box("a"), []string{"0"}))
	g.Release(box("c"))
	if err := g.Claim(box("a"), []string{"0"}); err != nil {
		t.Errorf("resuming a after c has ended: %v", err)
	}
}
