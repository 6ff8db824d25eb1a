package worker

import (
	"context"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/network"
)

// networkConfig returns the part of the worker's configuration that is about networks.
func (w *worker) networkConfig() network.Config {
	return network.Config{
		Deployment: w.conn.Deployment(), EngineAddress: w.engine.Address(), Engine: w.engine, Subnets: w.subnets,
		Firewall: w.cfg.Firewall, DenyNetworks: w.cfg.DenyNetworks, AllowNetworks: w.cfg.AllowNetworks, DNS: w.cfg.DNS,
		Connections: w.cfg.Connections, Fence: w.fence, Reconcile: w.cfg.Reconcile, ReapDryRun: w.cfg.ReapDryRun,
		Logger: w.log,
	}
}

// findNetwork finds the sandbox's network on the host.
func (s *sandbox) findNetwork(ctx context.Context) (n docker.Network, found bool, err error) {
	networks, err := s.w.engine.Networks(ctx)
	i := slices.IndexFunc(networks, func(n docker.Network) bool { return n.Name == s.name() })
	if err != nil || i < 0 {
		return n, false, err
	}
	return networks[i], true, nil
}

// protectAgain makes sure of the rules of an existing sandbox's network before something is started in the network.
func (s *sandbox) protectAgain(ctx context.Context, spec *protocol.SandboxSpec) error {
	return s.w.isolation.RestoreExisting(spec, func() (docker.Network, bool, error) { return s.findNetwork(ctx) })
}
