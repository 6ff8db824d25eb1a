package network

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// Config configures how one host isolates the networks of its sandboxes. The strings have the format of the worker's
// configuration.
type Config struct {
	Deployment    string
	EngineAddress string
	Firewall      string   // "required", the default, or "off"
	DenyNetworks  []string // IPv4 ranges that no sandbox reaches
	AllowNetworks []string // private IPv4 ranges that specs may allow
	DNS           []string // name servers of sandboxes; default: the name servers of the engine's host
	Connections   int      // maximum number of open connections of a sandbox to other networks; 0: no limit

	Subnets    *Subnets
	Engine     Engine
	Fence      func() error  // must return nil before each change on the host
	Reconcile  time.Duration // the time between two calls of Sync
	ReapDryRun bool          // only reports orphan bridges, and removes none
	Logger     *slog.Logger
}

// Engine lists the networks on the Docker engine, including those that this deployment did not create.
type Engine interface {
	UsedSubnets(ctx context.Context) ([]netip.Prefix, error)
	Bridges(ctx context.Context) ([]docker.Network, error)
}

// Isolation isolates the networks of sandboxes from everything that they must not reach, unless the operator turned the
// firewall off. Its methods may be called concurrently, but only one [Isolation.Sync] may run at a time.
type Isolation struct {
	settings
	rules
	subnets *Subnets
	engine  Engine
	orphans orphanBridges // used by Sync only
	health  hosterr.Problem
}

// New checks the operator's network settings. The caller must call [Isolation.Close] at the end. Error:
// invalid_argument.
func New(cfg Config) (*Isolation, error) {
	settings, err := parseSettings(cfg)
	if err != nil {
		return nil, err
	}
	fw := firewall.New(firewall.Config{Deployment: cfg.Deployment, Engine: cfg.EngineAddress, Deny: settings.deny,
		Allow: settings.allow, MostConns: cfg.Connections, Pool: cfg.Subnets.Pool(), Resolvers: settings.dns,
		Logger: cfg.Logger})
	i := &Isolation{
		settings: *settings,
		rules:    rules{firewall: fw, settings: settings, fence: cfg.Fence, log: cfg.Logger},
		subnets:  cfg.Subnets,
		engine:   cfg.Engine,
		orphans: orphanBridges{firewall: fw, subnets: cfg.Subnets, engine: cfg.Engine, fence: cfg.Fence, log: cfg.Logger,
			rest: orphanPasses * cfg.Reconcile, dryRun: cfg.ReapDryRun},
	}
	if settings.required {
		if err := i.checkNameServers(); err != nil {
			fw.Close()
			return nil, err
		}
		i.health.Set(protocol.Errorf(protocol.Unavailable, protocol.ReasonFirewall,
			"the worker has not yet written the firewall rules for the networks of sandboxes"))
	}
	return i, nil
}

// Close closes the engine's network namespace. The rules in the namespace remain.
func (i *Isolation) Close() { i.firewall.Close() }

// checkNameServers refuses configured name servers on the host itself, because sandboxes cannot reach the host. If no
// name servers are configured, sandboxes use the host's name servers, and checkNameServers warns if one of these runs
// on the host.
func (i *Isolation) checkNameServers() error {
	own := i.firewall.HostAddresses()
	for _, a := range i.dns {
		if slices.Contains(own, a) {
			return protocol.Invalid("dns", "must not have an address of the engine's host, got %s: sandboxes cannot reach it", a)
		}
	}
	if unreachable := i.firewall.HostNameServers(); len(unreachable) > 0 && len(i.dns) == 0 {
		i.log.Warn("sandboxes cannot resolve names: the host's name servers run on the host itself, which sandboxes "+
			"cannot reach; set worker.dns", "servers", unreachable)
	}
	return nil
}

// Status returns what the table of hosts shows: the kind of firewall in use, and the firewall's problem or "".
func (i *Isolation) Status() (kind, problem string) {
	if !i.required {
		return protocol.FirewallOff, ""
	}
	if problem = i.health.Get(); problem != "" {
		return "", problem
	}
	return protocol.FirewallNFTables, ""
}

// ConnectionsUnlimited reports whether the rules are in place, but the kernel cannot limit the connections of a
// sandbox.
func (i *Isolation) ConnectionsUnlimited() bool {
	return i.required && i.health.Get() == "" && !i.firewall.LimitsConnections()
}

// Check refuses a network policy that this host cannot or must not provide, even if the coordinator accepted it.
func (i *Isolation) Check(s *protocol.SandboxSpec) error {
	policy, err := i.enforceable(s)
	if err != nil || !i.required {
		return err
	}
	if n, denied := i.firewall.Denied(policy); denied {
		return policyDenied(allowField(n),
			"no sandbox on this host may reach %s: the range is never reachable, or worker.deny_networks denies it",
			policy.Allow[n])
	}
	if n, withheld := i.firewall.Withheld(policy); withheld {
		return policyDenied(allowField(n), "%s is a private range that the host's operator does not allow "+
			"in worker.allow_networks", policy.Allow[n])
	}
	return nil
}

func allowField(i int) string { return fmt.Sprintf("spec.network.allow[%d]", i) }

func policyDenied(field, format string, args ...any) error {
	e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPolicyDenied, format, args...)
	e.Field = field
	return e
}

// NameServers returns the name servers to configure in a sandbox's containers. nil leaves the choice to the engine.
func (i *Isolation) NameServers(s *protocol.SandboxSpec) []string {
	if policy, err := firewall.PolicyOf(s.Network); i.required && err == nil { // Check has validated the policy
		return i.firewall.DNS(policy)
	}
	var list []string
	for _, a := range i.dns {
		list = append(list, a.String())
	}
	return list
}
