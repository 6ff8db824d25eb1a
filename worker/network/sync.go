package network

import (
	"context"
	"slices"

	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// Mark returns a value for [Isolation.Sync]. It must be called before the engine's networks are listed.
func (i *Isolation) Mark() uint64 { return i.firewall.Mark() }

// Sync restores missing rules, and removes the rules of networks that are gone. The caller first calls
// [Isolation.Mark], then reads the list of this deployment's networks on the engine, and passes both results to Sync.
// Sync reports whether [Isolation.Status] changed.
func (i *Isolation) Sync(ctx context.Context, mark uint64, networks []docker.Network) (changed bool) {
	if !i.required || i.fence() != nil {
		i.Withdraw()
		return false
	}
	wanted := make([]firewall.Network, 0, len(networks))
	for _, n := range networks {
		if _, ours := docker.KeyOf(n.Labels); ours && n.Subnet.IsValid() {
			wanted = append(wanted, RulesOf(n))
		}
	}
	err := i.firewall.Sync(mark, wanted)
	if err == nil {
		err = i.verifyNamespace(ctx)
	}
	if err == nil {
		if err := i.orphans.remove(ctx); err != nil && ctx.Err() == nil {
			i.log.Warn("could not remove orphan bridges; retrying at the next reconciliation", "error", err)
		}
	}
	if !i.health.Set(err) {
		return false
	}
	if err != nil {
		i.log.Warn("could not write the firewall rules for the networks of sandboxes; the host takes no sandboxes until "+
			"that succeeds", "error", err)
	} else {
		i.log.Info("the firewall rules for the networks of sandboxes are in place")
	}
	return true
}

// verifyNamespace checks that the rules are in the engine's network namespace, where the engine's bridges must be. If
// the engine has no bridges, the check is made when its first network is created.
func (i *Isolation) verifyNamespace(ctx context.Context) error {
	networks, err := i.engine.Bridges(ctx)
	if err != nil || len(networks) == 0 {
		return err
	}
	bridges := make([]firewall.Network, 0, len(networks))
	for _, n := range networks {
		bridges = append(bridges, firewall.Network{Bridge: n.Bridge, Subnet: n.Subnet})
	}
	return i.firewall.Check(bridges...)
}

// RefreshSubnets updates which subnets of the pool are free.
func (i *Isolation) RefreshSubnets(ctx context.Context) error {
	i.subnets.begin()
	used, err := i.engine.UsedSubnets(ctx)
	if err == nil {
		i.subnets.update(slices.Concat(used, machineSubnets(), i.firewall.Subnets()))
	}
	return err
}
