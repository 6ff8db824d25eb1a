package network

import (
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// RulesOf returns what the firewall needs to know about an existing network. A network made before there were policies
// has the default policy; one whose policy cannot be parsed is closed.
func RulesOf(n docker.Network) firewall.Network {
	policy := firewall.Policy{Mode: protocol.NetworkInternet}
	if text := n.Labels[docker.LabelNetwork]; text != "" {
		var err error
		if policy, err = firewall.ParsePolicy(text); err != nil {
			policy = firewall.Policy{Mode: protocol.NetworkNone}
		}
	}
	return firewall.Network{Bridge: n.Bridge, Subnet: n.Subnet, Policy: policy}
}

// BridgeExists reports whether an interface of that name exists on the engine's host, also if the engine did not make
// it.
func (i *Isolation) BridgeExists(bridge string) bool { return i.firewall.Exists(bridge) }

// Protect writes the rules of a network, before anything is in the network.
func (i *Isolation) Protect(n firewall.Network) error {
	return i.change(func() error { return i.firewall.Protect(n) })
}

// Restore makes sure of the rules of a network, immediately before something is started in the network.
func (i *Isolation) Restore(n firewall.Network) error {
	if err := i.change(func() error { return i.firewall.Restore(n) }); err != nil {
		return err
	}
	return i.Verify(n)
}

// RestoreExisting does the same for the network of a sandbox that was made earlier: the operator may have turned the
// firewall off since. find returns the engine's network, and false if it is gone.
func (i *Isolation) RestoreExisting(s *protocol.SandboxSpec, find func() (docker.Network, bool, error)) error {
	if _, err := i.enforceable(s); err != nil || !i.required {
		return err
	}
	n, found, err := find()
	if err != nil {
		return err
	}
	if !found {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the sandbox's network is gone")
	}
	return i.Restore(RulesOf(n))
}

// Verify checks that the rules are in the network namespace in which the network is. Nothing is started in a network
// for which that fails.
func (i *Isolation) Verify(n firewall.Network) error {
	if !i.required {
		return nil
	}
	return i.firewall.Check(n)
}

// Unprotect removes the rules of a network that is about to be removed.
func (i *Isolation) Unprotect(bridge string) error {
	if bridge == "" {
		return nil
	}
	return i.change(func() error { return i.firewall.Forget(bridge) })
}

// Removed makes sure that no rules are left of a network that the engine has removed.
func (i *Isolation) Removed(bridge string) error {
	if bridge == "" {
		return nil
	}
	return i.change(func() error { return i.firewall.Gone(bridge) })
}

// change changes rules if the firewall is on and the host's lock is held.
func (i *Isolation) change(change func() error) error {
	if !i.required {
		return nil
	}
	if err := i.fence(); err != nil {
		return err
	}
	return change()
}

// Withdraw cleans up after the operator has turned the firewall off: it removes the rules of networks that are gone,
// because another sandbox may get their subnets. Rules that cannot be reached stay.
func (i *Isolation) Withdraw() {
	if i.required || i.fence() != nil {
		return
	}
	if err := i.firewall.Withdraw(); err != nil {
		i.log.Debug("could not remove the rules left from before the firewall was turned off", "error", err)
	}
}

// RemoveAll removes all rules of the deployment, for a deployment that does not come back.
func (i *Isolation) RemoveAll() error {
	if !i.required {
		return nil
	}
	return i.firewall.Remove()
}
