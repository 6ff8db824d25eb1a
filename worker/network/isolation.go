package network

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// Config describes how one host isolates the networks of its sandboxes. The texts are as in the worker's configuration.
type Config struct {
	Deployment    string
	EngineAddress string
	Firewall      string   // "required", the default, or "off"
	DenyNetworks  []string // IPv4 ranges that no sandbox reaches
	AllowNetworks []string // private IPv4 ranges that specs may allow
	DNS           []string // name servers of sandboxes; default: those of the engine's host
	Connections   int      // maximum connections of one sandbox beyond its network; 0: no limit

	Subnets    *Subnets
	Engine     Engine
	Fence      func() error  // must pass before each change on the host
	Reconcile  time.Duration // between two calls of Sync
	ReapDryRun bool          // only report orphan bridges
	Logger     *slog.Logger
}

// Engine lists the networks of the Docker engine, whichever deployment they belong to.
type Engine interface {
	UsedSubnets(ctx context.Context) ([]netip.Prefix, error)
	Bridges(ctx context.Context) ([]docker.Network, error)
}

// Isolation keeps the networks of sandboxes apart from everything they must not reach, unless the operator turned that
// off. Its methods may be called concurrently, except that only one [Isolation.Sync] may run at a time.
type Isolation struct {
	firewall   *firewall.Firewall
	required   bool // false: the operator turned the firewall off; existing rules are removed with their networks
	deny       []netip.Prefix
	allow      []netip.Prefix
	dns        []netip.Addr
	subnets    *Subnets
	engine     Engine
	fence      func() error
	log        *slog.Logger
	orphans    orphans       // used by Sync only
	orphanRest time.Duration // how long a bridge must have been an orphan before it is removed
	reapDryRun bool

	mu      sync.Mutex
	problem string // why this host cannot be protected; "" when it is
}

const firewallRequired = "required"

// New checks the operator's network settings. The caller calls [Isolation.Close]. Error: invalid_argument.
func New(cfg Config) (*Isolation, error) {
	i := &Isolation{subnets: cfg.Subnets, engine: cfg.Engine, fence: cfg.Fence, log: cfg.Logger,
		orphanRest: orphanPasses * cfg.Reconcile, reapDryRun: cfg.ReapDryRun}
	var err error
	if i.deny, err = parseRanges("deny_networks", cfg.DenyNetworks); err != nil {
		return nil, err
	}
	if i.allow, err = parseRanges("allow_networks", cfg.AllowNetworks); err != nil {
		return nil, err
	}
	for _, r := range i.allow {
		if !protocol.PrivateRange(r) {
			return nil, protocol.Invalid("allow_networks",
				"must be private ranges, since public ones are always allowed, got %s", r)
		}
	}
	for _, text := range cfg.DNS {
		a, err := netip.ParseAddr(text)
		if err != nil || !a.Is4() || a.IsLoopback() {
			return nil, protocol.Invalid("dns", "must be IPv4 addresses outside of the loopback, got %.60q", text)
		}
		i.dns = append(i.dns, a)
	}
	i.firewall = firewall.New(firewall.Config{Deployment: cfg.Deployment, Engine: cfg.EngineAddress, Deny: i.deny,
		Allow: i.allow, MostConns: cfg.Connections, Pool: cfg.Subnets.Pool(), Resolvers: i.dns, Logger: cfg.Logger})
	switch cfg.Firewall {
	case protocol.FirewallOff:
	case "", firewallRequired:
		i.required = true
		if err := i.checkNameServers(); err != nil {
			i.firewall.Close()
			return nil, err
		}
		i.setProblem(protocol.Errorf(protocol.Unavailable, protocol.ReasonFirewall,
			"the firewall rules for sandbox networks are not written yet"))
	default:
		return nil, protocol.Invalid("firewall", "must be %q or %q, got %.40q", firewallRequired, protocol.FirewallOff,
			cfg.Firewall)
	}
	return i, nil
}

// Close releases the engine's network namespace. The rules stay.
func (i *Isolation) Close() { i.firewall.Close() }

// parseRanges parses IPv4 ranges of the configuration.
func parseRanges(field string, texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || !p.Addr().Is4() {
			return nil, protocol.Invalid(field, "must be IPv4 ranges such as 10.0.0.0/8, got %.60q", text)
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

func rangeTexts(ranges []netip.Prefix) (texts []string) {
	for _, r := range ranges {
		texts = append(texts, r.String())
	}
	return texts
}

// checkNameServers refuses configured name servers on the host itself, because sandboxes cannot reach the host. It only
// warns when the host's own configuration names one.
func (i *Isolation) checkNameServers() error {
	own := i.firewall.Own()
	for _, a := range i.dns {
		if slices.Contains(own, a) {
			return protocol.Invalid("dns", "must not be addresses of the engine's host, which sandboxes cannot reach, got %s", a)
		}
	}
	if unreachable := i.firewall.OwnResolvers(); len(unreachable) > 0 && len(i.dns) == 0 {
		i.log.Warn("sandboxes cannot reach the host's name servers, which run on the host itself; set worker.dns",
			"servers", unreachable)
	}
	return nil
}

// setProblem records why the host cannot be protected, nil when it is, and reports whether that changed between a
// problem and none.
func (i *Isolation) setProblem(err error) (changed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	changed = (i.problem == "") != (problem == "")
	i.problem = problem
	return changed
}

func (i *Isolation) currentProblem() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.problem
}

// Status returns what the table of hosts shows: the kind of firewall in use, and what is wrong with it.
func (i *Isolation) Status() (kind, problem string) {
	if !i.required {
		return protocol.FirewallOff, ""
	}
	if problem = i.currentProblem(); problem != "" {
		return "", problem
	}
	return protocol.FirewallNFTables, ""
}

// ConnectionsUnlimited reports whether the rules work but the kernel cannot limit the connections of a sandbox.
func (i *Isolation) ConnectionsUnlimited() bool {
	return i.required && i.currentProblem() == "" && !i.firewall.Counts()
}

// Denied returns the ranges that no sandbox reaches, for the table of hosts.
func (i *Isolation) Denied() []string { return rangeTexts(i.deny) }

// Allowed returns the private ranges that specs may allow, for the table of hosts.
func (i *Isolation) Allowed() []string { return rangeTexts(i.allow) }

// Check refuses a network policy that this host cannot or must not provide, even if the coordinator accepted it.
func (i *Isolation) Check(s *protocol.SandboxSpec) error {
	policy, err := i.enforceable(s)
	if err != nil || !i.required {
		return err
	}
	if n, denied := i.firewall.Denied(policy); denied {
		return policyDenied(allowField(n),
			"no sandbox may reach %s: it is never reachable, or denied by the operator (worker.deny_networks)", policy.Allow[n])
	}
	if n, withheld := i.firewall.Withheld(policy); withheld {
		return policyDenied(allowField(n), "%s is private, and the host's operator does not allow it (worker.allow_networks)",
			policy.Allow[n])
	}
	return nil
}

// enforceable refuses a policy other than internet on a host whose firewall is off.
func (i *Isolation) enforceable(s *protocol.SandboxSpec) (firewall.Policy, error) {
	policy, err := firewall.PolicyOf(s.Network)
	if err != nil || i.required || policy.Mode == protocol.NetworkInternet {
		return policy, err
	}
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonFirewall,
		"the host's operator turned the firewall off, so the host cannot restrict what a sandbox reaches")
	e.Field = "spec.network"
	return policy, e
}

func allowField(i int) string { return fmt.Sprintf("spec.network.allow[%d]", i) }

func policyDenied(field, format string, args ...any) error {
	e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPolicyDenied, format, args...)
	e.Field = field
	return e
}

// NameServers returns the name servers to configure in a sandbox's containers; nil leaves them to the engine.
func (i *Isolation) NameServers(s *protocol.SandboxSpec) []string {
	if policy, err := firewall.PolicyOf(s.Network); i.required && err == nil { // validated before
		return i.firewall.DNS(policy)
	}
	var list []string
	for _, a := range i.dns {
		list = append(list, a.String())
	}
	return list
}
