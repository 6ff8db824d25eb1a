package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// BridgePrefix is the prefix of the names of the sandbox bridges of all deployments.
	BridgePrefix = "bxf-"
	// SubnetBits is the prefix length of a sandbox's network. The network has 16 addresses. Three of them are the network
	// address, the gateway and the broadcast address.
	SubnetBits = 28
)

// BridgeName returns the name of the bridge of a sandbox's network. Subnets are unique on a host, so the names of
// bridges are unique too.
func BridgeName(subnet netip.Prefix) string {
	a := subnet.Addr().As4()
	return fmt.Sprintf("%s%08x", BridgePrefix, binary.BigEndian.Uint32(a[:]))
}

// Config configures a [Firewall].
type Config struct {
	Deployment string
	Engine     string         // address of the Docker Engine
	Deny       []netip.Prefix // IPv4 ranges that no sandbox reaches, even if its policy allows them
	Allow      []netip.Prefix // private IPv4 ranges that a policy may allow; nil: no ranges
	MostConns  int            // maximum number of open connections from one network to other networks; 0: no limit
	Pool       netip.Prefix   // the range from which sandbox networks are taken
	Resolvers  []netip.Addr   // name servers for sandboxes with mode internet; default: the engine host's
	Logger     *slog.Logger
}

// Network is the network of a sandbox.
type Network struct {
	Bridge string // name of the network's bridge interface on the host
	Subnet netip.Prefix
	Policy Policy
}

func (n Network) equal(o Network) bool {
	return n.Bridge == o.Bridge && n.Subnet == o.Subnet && n.Policy.String() == o.Policy.String()
}

// Firewall manages the table of a deployment in the network namespace of an engine. Its methods may be called
// concurrently. They return errors of type *protocol.Error: failed_precondition with reason firewall_unavailable if
// this host cannot be protected, and unavailable if a retry may help.
type Firewall struct {
	*host
	cfg    Config
	table  table
	ledger ledger
}

// New returns a firewall. It does not read or change the host yet.
func New(cfg Config) *Firewall {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Firewall{host: &host{engine: cfg.Engine}, cfg: cfg, ledger: newLedger()}
	f.table = table{host: f.host, cfg: &f.cfg, name: "boxfleet-" + cfg.Deployment, counts: true}
	return f
}

// LimitsConnections reports whether the firewall limits the number of connections of each network. Until the first
// write, it assumes that the kernel can count connections.
func (f *Firewall) LimitsConnections() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table.counts && f.cfg.MostConns > 0
}

// Protect writes or rewrites the rules of a network in one transaction. If the network does not exist yet, it will be
// protected from its first packet on.
func (f *Firewall) Protect(n Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.protect(n)
}

// Restore protects a network that should already be protected. It writes the rules only if they are missing, because
// for the kernel, reading rules is much cheaper than writing them.
func (f *Firewall) Restore(n Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ledger.holds(n) && f.place != nil && f.table.written(n.Bridge) {
		return nil
	}
	return f.protect(n)
}

func (f *Firewall) protect(n Network) error {
	f.ledger.add(n)
	if f.place == nil {
		return f.writeAll()
	}
	err := f.table.writeNetworks([]Network{n})
	if errors.Is(err, unix.ENOENT) { // the table was deleted
		return f.writeAll()
	}
	return explain(err)
}

// Check verifies that this firewall writes its rules to the engine's namespace. The parameter lists bridges of the
// engine. At least one of these bridges must be in that namespace.
func (f *Firewall) Check(bridges ...Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	here := func(n Network) bool {
		if !f.place.has(n.Bridge, n.Subnet) {
			return false
		}
		f.ledger.confirm(n.Bridge)
		return true
	}
	if f.place != nil && slices.ContainsFunc(bridges, here) {
		return nil
	}
	f.leave() // the engine may have been restarted in another namespace
	if err := f.writeAll(); err != nil {
		return err
	}
	if !slices.ContainsFunc(bridges, here) {
		f.removeMisplaced()
		return unprotected("the engine's bridge %s is not in the network namespace of the process that listens on %s",
			bridges[0].Bridge, f.cfg.Engine)
	}
	return nil
}

// removeMisplaced removes the table from a namespace that is not the engine's. It keeps the table if any of the bridges
// with rules is in the namespace.
func (f *Firewall) removeMisplaced() {
	ruled, err := f.table.bridges()
	if err != nil {
		f.leave()
		return
	}
	for bridge := range ruled {
		if subnet, ok := bridgeSubnet(bridge); ok && f.place.has(bridge, subnet) {
			return
		}
	}
	if err := f.table.drop(); err != nil {
		f.cfg.Logger.Warn("could not remove the firewall's table from a network namespace that is not the engine's",
			"table", f.table.name, "error", err)
	}
	f.leave()
}

// Forget removes the rules of a network. The network must be gone or have no containers. Rules that do not exist are no
// error.
func (f *Firewall) Forget(bridge string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger.forget(bridge)
	f.ledger.markGone(bridge)
	if f.place == nil {
		return nil // the next Sync removes the rules
	}
	return f.table.forget([]string{bridge})
}

// Gone records that the engine has removed a network. The caller must have called [Firewall.Forget] before. Gone
// removes the network's rules once more, because a Sync between Forget and Gone may have restored them from a list that
// still had the network.
func (f *Firewall) Gone(bridge string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger.markGone(bridge)
	if !f.ledger.has(bridge) || f.place == nil {
		return nil
	}
	f.ledger.forget(bridge)
	return f.table.forget([]string{bridge})
}

// Mark returns the present reading of the firewall's own clock, for [Firewall.Sync].
func (f *Firewall) Mark() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ledger.clock
}

// Sync rewrites all rules, which restores missing rules. It also removes the rules of networks that are gone. The
// caller first calls [Firewall.Mark], then reads the list of the engine's networks, and passes both results to Sync.
// Changes that other methods have made since the call of Mark take precedence over the list.
func (f *Firewall) Sync(mark uint64, listed []Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger.update(mark, listed)
	f.leave() // the engine may have been restarted in another namespace
	if err := f.writeAll(); err != nil {
		return err
	}
	return f.prune()
}

// prune removes the chains of bridges that belong to no known network. It must not be called before the ledger has
// processed the engine's complete list of networks. Until then, the ledger knows only the networks that the worker has
// handled since its start.
func (f *Firewall) prune() error {
	there, err := f.table.bridges()
	if err != nil {
		return explain(err)
	}
	maps.DeleteFunc(there, func(bridge string, _ bool) bool { return f.ledger.has(bridge) })
	return f.table.forget(slices.Collect(maps.Keys(there)))
}

// writeAll writes all rules that should exist, and removes no rules. The caller holds the lock.
func (f *Firewall) writeAll() error {
	if err := f.enter(); err != nil {
		return err
	}
	if err := f.table.writeCommon(); err != nil {
		f.leave()
		return explain(err)
	}
	there, err := f.table.bridges()
	if err != nil {
		return explain(err)
	}
	networks, missing := f.ledger.networks(there)
	if missing > 0 {
		f.cfg.Logger.Warn("firewall rules of some networks were missing; restoring them", "networks", missing)
	}
	return explain(f.table.writeNetworks(networks))
}

// Withdraw removes the chains of bridges that no longer exist, and removes the table when no such chain is left. A
// worker calls Withdraw if its operator has turned the firewall off. Networks that still exist keep their rules.
func (f *Firewall) Withdraw() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leave() // the engine may have been restarted in another namespace
	if err := f.enter(); err != nil {
		return err
	}
	there, err := f.table.bridges()
	if err != nil {
		return explain(err)
	}
	var gone []string
	for bridge := range there {
		if !f.place.exists(bridge) {
			gone = append(gone, bridge)
		}
	}
	if len(gone) < len(there) {
		return f.table.forget(gone)
	}
	return f.table.remove()
}

// Remove removes the table of a deployment that will not be used again. A table that does not exist is no error.
func (f *Firewall) Remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger.clear()
	if err := f.enter(); err != nil {
		return err
	}
	return f.table.remove()
}
