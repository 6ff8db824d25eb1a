package sandbox

import (
	"context"
	"errors"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
	"github.com/boxfleet/boxfleet/worker/network"
)

// networks makes and finds the sandbox's network.
type networks struct{ s *Sandbox }

// make makes the sandbox's network on a subnet of its own, or finds the one that an earlier try made, if there
// was one. The network's rules are in place before the network.
func (m networks) make(ctx context.Context, b *protocol.Sandbox, earlier bool) (firewall.Network, error) {
	s := m.s
	if earlier || b.Phase != "" {
		if n, found, err := m.adopt(ctx); found || err != nil {
			return n, err
		}
	}
	policy, err := firewall.PolicyOf(b.Spec.Network)
	if err != nil {
		return firewall.Network{}, err
	}
	labels := labels(b, s.key)
	labels[docker.LabelNetwork] = policy.String()
	for {
		subnet, err := s.host.Subnets.Take()
		if err != nil {
			return firewall.Network{}, err
		}
		n := firewall.Network{Bridge: firewall.BridgeName(subnet), Subnet: subnet, Policy: policy}
		if s.host.Network.BridgeExists(n.Bridge) { // the engine would use a foreign or orphaned bridge as its own
			s.host.Subnets.MarkForeign(subnet)
			continue
		}
		n, retry, err := m.try(ctx, n, labels, earlier)
		if !retry {
			return n, err
		}
	}
}

// try makes a network on a subnet. It returns retry if the subnet turns out to be used.
func (m networks) try(ctx context.Context, n firewall.Network, labels map[string]string, earlier bool) (
	_ firewall.Network, retry bool, _ error) {
	s := m.s
	if err := s.host.Network.Protect(n); err != nil {
		s.host.Subnets.Release(n.Subnet)
		return n, false, err
	}
	s.host.Probe("before-network-create")
	err := s.awaitEngine(func() error {
		return s.host.Engine.CreateNetwork(ctx, docker.NetworkSpec{Name: s.name(), Subnet: n.Subnet, Bridge: n.Bridge,
			Labels: labels})
	})
	s.host.Probe("after-network-create")
	if err == nil {
		s.host.Subnets.Use(n.Subnet)
		return n, false, s.host.Network.Verify(n)
	}
	// The engine may have made it nevertheless. Whatever network it lists gets its rules again.
	if lost := s.host.Network.Unprotect(n.Bridge); lost != nil {
		s.log.Warn("could not remove the rules of a network that was not made", "error", lost)
	}
	switch {
	case protocol.CodeOf(err) == protocol.AlreadyExists && !earlier: // the machine lost the files of an earlier try
		s.host.Subnets.Release(n.Subnet)
		if adopted, found, findErr := m.adopt(ctx); found || findErr != nil {
			return adopted, false, findErr
		}
		return n, false, err
	case !errors.Is(err, docker.ErrSubnetOverlap):
		s.host.Subnets.Release(n.Subnet)
		return n, false, err
	}
	s.host.Subnets.MarkForeign(n.Subnet)
	return n, true, nil
}

// adopt finds the network that an earlier try made, and puts its rules in place.
func (m networks) adopt(ctx context.Context) (n firewall.Network, found bool, err error) {
	s := m.s
	there, found, err := m.find(ctx)
	if err != nil || !found {
		return n, false, err
	}
	s.host.Subnets.Use(there.Subnet)
	n = network.RulesOf(there)
	if err := s.host.Network.Protect(n); err != nil {
		return n, true, err
	}
	return n, true, s.host.Network.Verify(n)
}

// find finds the sandbox's network on the engine.
func (m networks) find(ctx context.Context) (n docker.Network, found bool, err error) {
	s := m.s
	networks, err := s.host.Engine.Networks(ctx)
	i := slices.IndexFunc(networks, func(n docker.Network) bool { return n.Name == s.name() })
	if err != nil || i < 0 {
		return n, false, err
	}
	return networks[i], true, nil
}

// RestoreRules puts the rules of the sandbox's network in place before something starts in it again.
func (l containers) RestoreRules(ctx context.Context, spec *protocol.SandboxSpec) error {
	return l.s.host.Network.RestoreExisting(spec, func() (docker.Network, bool, error) { return l.s.networks.find(ctx) })
}
