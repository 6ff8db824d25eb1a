package worker

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// isolation keeps the networks of sandboxes apart from everything that they must not reach, where the
// operator has not turned that off.
type isolation struct {
	wall     *firewall.Firewall
	required bool // false: the operator turned it off, and rules of before go with their networks
	deny     []netip.Prefix
	allow    []netip.Prefix // private ranges that specs may allow
	dns      []netip.Addr
	health   health // why this host cannot be protected
}

// newIsolation reads what the operator says of networks.
func newIsolation(cfg *Config, deployment, engine string, pool netip.Prefix) (*isolation, error) {
	i := &isolation{}
	var err error
	if i.deny, err = ranges("deny_networks", cfg.DenyNetworks); err != nil {
		return nil, err
	}
	if i.allow, err = ranges("allow_networks", cfg.AllowNetworks); err != nil {
		return nil, err
	}
	for _, r := range i.allow {
		if !protocol.PrivateRange(r) {
			return nil, protocol.Invalid("allow_networks", "must be private ranges, since public ones need no allowance, got %s", r)
		}
	}
	for _, text := range cfg.DNS {
		a, err := netip.ParseAddr(text)
		if err != nil || !a.Is4() || a.IsLoopback() {
			return nil, protocol.Invalid("dns", "must be IPv4 addresses, and not of the loopback, got %.60q", text)
		}
		i.dns = append(i.dns, a)
	}
	i.wall = firewall.New(firewall.Config{Deployment: deployment, Engine: engine, Deny: i.deny, Allow: i.allow, MostConns: cfg.Connections, Pool: pool, Resolvers: i.dns, Logger: cfg.Logger})
	switch cfg.Firewall {
	case protocol.FirewallOff:
	case "", firewallRequired:
		i.required = true
		if err := i.checkServers(cfg.Logger); err != nil {
			i.wall.Close()
			return nil, err
		}
		i.health.set(protocol.Errorf(protocol.Unavailable, protocol.ReasonFirewall, "the networks of sandboxes are not protected yet"))
	default:
		return nil, protocol.Invalid("firewall", "must be %q or %q, got %.40q", firewallRequired, protocol.FirewallOff, cfg.Firewall)
	}
	return i, nil
}

// ranges reads IPv4 ranges of the configuration.
func ranges(field string, texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || !p.Addr().Is4() {
			return nil, protocol.Invalid(field, "must be IPv4 ranges such as 10.0.0.0/8, got %.60q", text)
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

const firewallRequired = "required"

// checkServers looks for name servers that no sandbox could ask, since they are the host itself.
func (i *isolation) checkServers(log *slog.Logger) error {
	own := i.wall.Own()
	for _, a := range i.dns {
		if slices.Contains(own, a) {
			return protocol.Invalid("dns", "must not be addresses of the engine's host, which no sandbox reaches, got %s", a)
		}
	}
	if deaf := i.wall.OwnResolvers(); len(deaf) > 0 && len(i.dns) == 0 {
		log.Warn("sandboxes cannot ask name servers of the host that are the host itself; worker.dns can name others", "servers", deaf)
	}
	return nil
}

// shown is what the host says of itself.
func (i *isolation) shown() (firewall, problem string) {
	if !i.required {
		return protocol.FirewallOff, ""
	}
	if problem = i.health.get(); problem != "" {
		return "", problem
	}
	return protocol.FirewallNFTables, ""
}

// texts are ranges as the table of hosts has them.
func texts(ranges []netip.Prefix) (list []string) {
	for _, r := range ranges {
		list = append(list, r.String())
	}
	return list
}

// check refuses a network that this host cannot give, whatever the coordinator let through.
func (i *isolation) check(s *protocol.SandboxSpec) error {
	policy, err := i.keeps(s)
	if err != nil || !i.required {
		return err
	}
	if n, denied := i.wall.Denied(policy); denied {
		e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPolicyDenied, "no sandbox reaches %s, by what it is or by the word of the host's operator", policy.Allow[n])
		e.Field = allowField(n)
		return e
	}
	if n, withheld := i.wall.Withheld(policy); withheld {
		e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPolicyDenied, "%s is private: the host's operator would have to allow it with worker.allow_networks", policy.Allow[n])
		e.Field = allowField(n)
		return e
	}
	return nil
}

// keeps refuses a network that asks for what this host does not do at all.
func (i *isolation) keeps(s *protocol.SandboxSpec) (firewall.Policy, error) {
	policy, err := firewall.PolicyOf(s.Network)
	if err != nil || i.required || policy.Mode == protocol.NetworkInternet {
		return policy, err
	}
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonFirewall, "the host's operator turned its firewall off: it cannot keep a network from anything")
	e.Field = "spec.network"
	return policy, e
}

// servers are the name servers that a container of a sandbox is told.
func (i *isolation) servers(s *protocol.SandboxSpec) []string {
	if policy, err := firewall.PolicyOf(s.Network); i.required && err == nil { // it was checked
		return i.wall.DNS(policy)
	}
	var list []string
	for _, a := range i.dns {
		list = append(list, a.String())
	}
	return list
}

// protect makes the rules of a network, before there is something in it.
func (w *worker) protect(n firewall.Network) error {
	return w.rule(func() error { return w.isolation.wall.Protect(n) })
}

// restore makes sure of the rules of a network, directly before something is started in it.
func (w *worker) restore(n firewall.Network) error {
	if err := w.rule(func() error { return w.isolation.wall.Restore(n) }); err != nil {
		return err
	}
	return w.protected(n)
}

// protected shows that the rules are where the network is. Nothing is started in one where they are
// not.
func (w *worker) protected(n firewall.Network) error {
	if !w.isolation.required {
		return nil
	}
	return w.isolation.wall.Check(n)
}

func (w *worker) unprotect(bridge string) error {
	if bridge == "" {
		return nil
	}
	return w.rule(func() error { return w.isolation.wall.Forget(bridge) })
}

// networkGone makes sure that no rules are left of a network that the engine has removed.
func (w *worker) networkGone(bridge string) error {
	if bridge == "" {
		return nil
	}
	return w.rule(func() error { return w.isolation.wall.Gone(bridge) })
}

// rule changes rules, where there are to be any, while the host's lock is held.
func (w *worker) rule(change func() error) error {
	if !w.isolation.required {
		return nil
	}
	if err := w.fence(); err != nil {
		return err
	}
	return change()
}

// withdraw takes away, of what the host has of a time when its firewall was on, the rules whose networks
// are gone: another sandbox may get such a subnet. Where they cannot be reached they stay.
func (w *worker) withdraw() {
	if w.isolation.required || w.fence() != nil {
		return
	}
	if err := w.isolation.wall.Withdraw(); err != nil {
		w.log.Debug("rules of before the firewall was turned off may be left", "error", err)
	}
}

// mark is to be taken before the engine's networks are listed for syncRules.
func (w *worker) mark() uint64 {
	return w.isolation.wall.Mark()
}

// syncRules puts back what is missing of the rules, and takes away those of networks that are gone.
func (w *worker) syncRules(ctx context.Context, mark uint64, networks []docker.Network) {
	if !w.isolation.required || w.fence() != nil {
		w.withdraw()
		return
	}
	list := make([]firewall.Network, 0, len(networks))
	for _, n := range networks {
		if _, ours := labelledKey(n.Labels); ours && n.Subnet.IsValid() {
			list = append(list, protectedNetwork(n))
		}
	}
	err := w.isolation.wall.Sync(mark, list)
	if err == nil {
		err = w.checkPlace(ctx)
	}
	if err == nil {
		if err := w.removeOrphanBridges(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("bridges without a network are looked at again later", "error", err)
		}
	}
	if !w.isolation.health.set(err) {
		return
	}
	if err != nil {
		w.log.Warn("the networks of sandboxes cannot be protected; no sandbox is taken", "error", err)
	} else {
		w.log.Info("the networks of sandboxes are protected")
	}
	select {
	case w.changed <- struct{}{}: // let the table of hosts know
	default:
	}
}

// checkPlace shows that the rules are where the engine is, by its bridges. An engine that has none yet
// shows it with the first network.
func (w *worker) checkPlace(ctx context.Context) error {
	networks, err := w.engine.Bridges(ctx)
	if err != nil || len(networks) == 0 {
		return err
	}
	bridges := make([]firewall.Network, 0, len(networks))
	for _, n := range networks {
		bridges = append(bridges, firewall.Network{Bridge: n.Bridge, Subnet: n.Subnet})
	}
	return w.isolation.wall.Check(bridges...)
}

// protectedNetwork is what the rules need to know of a network. One that was made before there were
// policies has the default; what cannot be read is shut.
func protectedNetwork(n docker.Network) firewall.Network {
	policy := firewall.Policy{Mode: protocol.NetworkInternet}
	if text := n.Labels[docker.LabelNetwork]; text != "" {
		var err error
		if policy, err = firewall.ParsePolicy(text); err != nil {
			policy = firewall.Policy{Mode: protocol.NetworkNone}
		}
	}
	return firewall.Network{Bridge: n.Bridge, Subnet: n.Subnet, Policy: policy}
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

// protectAgain makes sure of the rules of a sandbox that was made before, before something in it is
// started. The operator may have turned the firewall off since.
func (s *sandbox) protectAgain(ctx context.Context, spec *protocol.SandboxSpec) error {
	if _, err := s.w.isolation.keeps(spec); err != nil || !s.w.isolation.required {
		return err
	}
	n, found, err := s.findNetwork(ctx)
	if err != nil {
		return err
	}
	if !found {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the sandbox's network is gone")
	}
	return s.w.restore(protectedNetwork(n))
}
