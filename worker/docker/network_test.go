package docker_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestANetworksLifeCycle(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	spec := docker.NetworkSpec{Name: b.name("net"), Subnet: freeSubnet(t, b.Engine),
		Labels: map[string]string{docker.LabelSandbox: "s1"}}
	check(t, b.CreateNetwork(ctx, spec))

	networks, err := b.Networks(ctx)
	check(t, err)
	if len(networks) != 1 {
		t.Fatalf("got the networks %+v, want one", networks)
	}
	n := networks[0]
	if n.Name != spec.Name || n.Subnet != spec.Subnet || n.Labels[docker.LabelSandbox] != "s1" || n.ID == "" ||
		n.Created.IsZero() {
		t.Errorf("got the network %+v, want %+v", n, spec)
	}
	used, err := b.UsedSubnets(ctx)
	check(t, err)
	if !slices.Contains(used, spec.Subnet) || len(used) < 2 { // the engine's default bridge also has a subnet
		t.Errorf("the subnets in use are %v, want %s and that of the default bridge", used, spec.Subnet)
	}
	if err := b.CreateNetwork(ctx, spec); protocol.CodeOf(err) != protocol.AlreadyExists {
		t.Errorf("creating a network with a taken name: got %v, want already_exists", err)
	}

	inside := b.sleeper()
	inside.Network, inside.Aliases = spec.Name, []string{"db"}
	id := b.create(t, inside, true)
	if err := b.RemoveNetwork(ctx, spec.Name); protocol.CodeOf(err) != protocol.FailedPrecondition {
		t.Errorf("removing a network with a container: got %v, want failed_precondition", err)
	}
	check(t, b.RemoveContainer(ctx, id))
	check(t, b.RemoveNetwork(ctx, spec.Name))
	networks, err = b.Networks(ctx)
	check(t, err)
	if len(networks) != 0 {
		t.Errorf("networks are left after the removal: %+v", networks)
	}
}

func TestAnOverlappingSubnetHasItsOwnError(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	subnet := freeSubnet(t, b.Engine)
	check(t, b.CreateNetwork(ctx, docker.NetworkSpec{Name: b.name("one"), Subnet: subnet}))
	for name, other := range map[string]netip.Prefix{
		"same": subnet, "wider": netip.PrefixFrom(subnet.Addr(), 24), "narrower": netip.PrefixFrom(subnet.Addr(), 29),
	} {
		err := b.CreateNetwork(ctx, docker.NetworkSpec{Name: b.name("two"), Subnet: other})
		if !errors.Is(err, docker.ErrSubnetOverlap) {
			t.Errorf("creating a network with the %s subnet: got %v, want %v", name, err, docker.ErrSubnetOverlap)
		}
	}
}

// An engine makes a network even if the caller goes away in the middle. So the call waits for it, or another worker
// would not find the network and make a second one.
func TestTheCreateOfANetworkIsWaitedForWhenItsCallerEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	sending := func() error { // the fence is checked when the request is sent
		cancel()
		return nil
	}
	b := newBench(t, func(c *docker.Config) { c.Fence = sending })
	err := b.CreateNetwork(ctx, docker.NetworkSpec{Name: b.name("net"), Subnet: freeSubnet(t, b.Engine)})
	check(t, err)
	networks, err := b.Networks(t.Context())
	check(t, err)
	if ctx.Err() == nil || len(networks) != 1 {
		t.Errorf("the engine has the networks %+v after the call, want one", networks)
	}
	if err := b.CreateNetwork(ctx, docker.NetworkSpec{Name: b.name("late")}); protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("a create whose caller had gone before it began: got %v, want cancelled", err)
	}
}
