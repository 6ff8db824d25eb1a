package coordinator

import (
	"context"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// A sandbox that no known host could take is refused only once this coordinator has read every earlier registration.
func TestAHostThatHasJustRegisteredCounts(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	c, stop := d.inMemory(Config{Name: "c1"})
	small, large := host("w1", 0), host("w2", 0)
	small.HostID, small.Memory, large.HostID, large.Memory = "h1", 1<<30, "h2", 8<<30
	d.register(small)
	d.eventually("the small host is known", func() bool { return d.hostIs("w1", protocol.HostReady) })
	stop() // from now on only the test updates c's table of hosts
	whole := protocol.SandboxSpec{Image: "i", Memory: 4 << 30}
	whole.Resolve()
	refused := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		return c.refuseImpossible(ctx, key{Tenant: "default", ID: "s"}, &whole, nil)
	}
	if refused() == nil {
		t.Error("a sandbox that no host could take is not refused")
	}
	d.register(large)
	if err := refused(); err != nil {
		t.Errorf("refused although the registration of the large host is not read yet: %v", err)
	}
	c.hosts.follow("w2", large, 2)
	if err := refused(); err != nil {
		t.Errorf("refused although the large host is known: %v", err)
	}
}
