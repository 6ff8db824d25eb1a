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

// make makes the sandbox's network on a subnet of its own. The network's firewall rules are in place before the network
// exists. If an earlier try may have made the network, make first searches for that network.
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
		if s.host.Network.BridgeExists(n.Bridge) { // the engine would use this bridge, although it has another owner
			s.host.Subnets.MarkForeign(subnet)
			continue
		}
		n, retry, err := m.try(ctx, n, labels, earlier)
		if err == nil && !retry && (earlier || b.Phase != "") { // the engine may have finished the earlier try by now
			if kept, found, lost := m.adopt(ctx); found || lost != nil {
				return kept, lost
			}
		}
		if !retry {
			return n, err
		}
	}
}

// try makes a network on a subnet. The result retry is true if another network already uses the subnet.
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
	// The engine may have made the network although it returned an error. If the engine lists the network later, adopt
	// restores the rules.
	if lost := s.host.Network.Unprotect(n.Bridge); lost != nil {
		s.log.Warn("could not remove the firewall rules of a network whose creation failed",
			"bridge", n.Bridge, "error", lost)
	}
	switch {
	case protocol.CodeOf(err) == protocol.AlreadyExists && !earlier: // an earlier try left the network, but no files
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

// adopt finds the network that an earlier try made, and puts the network's firewall rules in place.
func (m networks) adopt(ctx context.Context) (n firewall.Network, found bool, err error) {
	s := m.s
	all, err := m.all(ctx)
	if err != nil || len(all) == 0 {
		return n, false, err
	}
	existing, err := m.keepOne(ctx, all)
	if err != nil {
		return n, true, err
	}
	s.host.Subnets.Use(existing.Subnet)
	n = network.RulesOf(existing)
	if err := s.host.Network.Protect(n); err != nil {
		return n, true, err
	}
	return n, true, s.host.Network.Verify(n)
}

// keepOne removes all networks of the sandbox but one. An engine goes on to make a network whose worker was killed, and
// does not list it yet, so the next worker makes another one with the same name. No container starts while the name of
// its network is ambiguous.
func (m networks) keepOne(ctx context.Context, all []docker.Network) (kept docker.Network, err error) {
	kept = all[0]
	for _, spare := range all[1:] {
		err := m.removeSpare(ctx, spare)
		if protocol.CodeOf(err) == protocol.FailedPrecondition { // it has containers, so the other one has none
			kept, spare = spare, kept
			err = m.removeSpare(ctx, spare)
		}
		if err != nil {
			return kept, err
		}
	}
	return kept, nil
}

func (m networks) removeSpare(ctx context.Context, n docker.Network) error {
	host := m.s.host
	if err := host.Engine.RemoveNetwork(ctx, n.ID); err != nil {
		return err
	}
	m.s.log.Info("removed a second network of the sandbox, which an earlier worker began to make", "id", n.ID)
	err := errors.Join(host.Network.Unprotect(n.Bridge), host.Network.Removed(n.Bridge))
	host.Subnets.Release(n.Subnet)
	return err
}

// find looks for the sandbox's network on the engine.
func (m networks) find(ctx context.Context) (n docker.Network, found bool, err error) {
	all, err := m.all(ctx)
	if err != nil || len(all) == 0 {
		return n, false, err
	}
	return all[0], true, nil
}

// all lists the networks on the engine that have the name of the sandbox's network, the oldest first.
func (m networks) all(ctx context.Context) ([]docker.Network, error) {
	networks, err := m.s.host.Engine.Networks(ctx)
	networks = slices.DeleteFunc(networks, func(n docker.Network) bool { return n.Name != m.s.name() })
	slices.SortFunc(networks, func(a, b docker.Network) int { return a.Created.Compare(b.Created) })
	return networks, err
}

// RestoreRules puts the firewall rules of the sandbox's network in place. Call it before a container of the sandbox
// starts again.
func (l containers) RestoreRules(ctx context.Context, spec *protocol.SandboxSpec) error {
	return l.s.host.Network.RestoreExisting(spec, func() (docker.Network, bool, error) { return l.s.networks.find(ctx) })
}
