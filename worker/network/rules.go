package network

import (
	"log/slog"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// RulesOf returns what the firewall needs to know about an existing network. A network that was created before policies
// existed has the default policy. A network whose policy cannot be parsed may connect to nothing.
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

// rules has the methods that change and check the firewall rules of one network.
type rules struct {
	firewall *firewall.Firewall
	settings *settings
	fence    func() error // must return nil before each change on the host
	log      *slog.Logger
}

// BridgeExists reports whether an interface with this name exists on the engine's host. The engine need not have
// created the interface.
func (r *rules) BridgeExists(bridge string) bool { return r.firewall.Exists(bridge) }

// Protect writes the rules of a network. It is called before the network has containers.
func (r *rules) Protect(n firewall.Network) error {
	return r.change(func() error { return r.firewall.Protect(n) })
}

// Restore ensures that the rules of a network are in place. It is called immediately before a container is started in
// the network.
func (r *rules) Restore(n firewall.Network) error {
	if err := r.change(func() error { return r.firewall.Restore(n) }); err != nil {
		return err
	}
	return r.Verify(n)
}

// RestoreExisting is like Restore, for the network of a sandbox that was created earlier. The operator may have turned
// the firewall off since the sandbox was created. find returns the engine's network, and false if the network does not
// exist.
func (i *Isolation) RestoreExisting(s *protocol.SandboxSpec, find func() (docker.Network, bool, error)) error {
	if _, err := i.enforceable(s); err != nil || !i.required {
		return err
	}
	n, found, err := find()
	if err != nil {
		return err
	}
	if !found {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing,
			"the sandbox's network no longer exists on the engine")
	}
	return i.Restore(RulesOf(n))
}

// Verify checks that the rules are in the same network namespace as the network. If Verify fails, nothing may be
// started in the network.
func (r *rules) Verify(n firewall.Network) error {
	if !r.settings.required {
		return nil
	}
	return r.firewall.Check(n)
}

// Unprotect removes the rules of a network that is about to be removed.
func (r *rules) Unprotect(bridge string) error {
	if bridge == "" {
		return nil
	}
	return r.change(func() error { return r.firewall.Forget(bridge) })
}

// Removed ensures that a network that the engine has removed has no rules left.
func (r *rules) Removed(bridge string) error {
	if bridge == "" {
		return nil
	}
	return r.change(func() error { return r.firewall.Gone(bridge) })
}

// change calls a function that changes rules, if the firewall is on and the host's lock is held.
func (r *rules) change(change func() error) error {
	if !r.settings.required {
		return nil
	}
	if err := r.fence(); err != nil {
		return err
	}
	return change()
}

// Withdraw cleans up after the operator has turned the firewall off. It removes the rules of networks that are gone,
// because another sandbox may get the same subnet. If the rules cannot be reached, they stay.
func (r *rules) Withdraw() {
	if r.settings.required || r.fence() != nil {
		return
	}
	if err := r.firewall.Withdraw(); err != nil {
		r.log.Debug("could not remove firewall rules that were written before the firewall was turned off", "error", err)
	}
}

// RemoveAll removes the deployment's firewall table from this host. The worker of a temporary deployment calls it at
// its end. It does nothing if the firewall is off.
func (r *rules) RemoveAll() error {
	if !r.settings.required {
		return nil
	}
	return r.firewall.Remove()
}
