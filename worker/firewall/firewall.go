package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// BridgePrefix is the prefix of the names of all sandbox bridges, of any deployment.
	BridgePrefix = "bxf-"
	// SubnetBits is the prefix length of a sandbox's network: 16 addresses, of which the network address, the gateway
	// and the broadcast address take three.
	SubnetBits = 28

	transactionLimit = 10 * time.Second
	socketBuffer     = 8 << 20 // for the kernel's replies to one transaction
	atOnce           = 64      // networks in one transaction
)

// BridgeName returns the name of the bridge of a sandbox's network. Subnets are unique on a host, so names are too.
func BridgeName(subnet netip.Prefix) string {
	a := subnet.Addr().As4()
	return fmt.Sprintf("%s%08x", BridgePrefix, binary.BigEndian.Uint32(a[:]))
}

// Config configures a [Firewall].
type Config struct {
	Deployment string
	Engine     string         // address of the Docker Engine
	Deny       []netip.Prefix // IPv4 ranges that no sandbox reaches, even if its policy allows them
	Allow      []netip.Prefix // private IPv4 ranges that a policy may allow; nil: none
	MostConns  int            // maximum connections from one network to others at a time; 0: no limit
	Pool       netip.Prefix   // the range that sandbox networks are taken from
	Resolvers  []netip.Addr   // name servers for sandboxes with mode internet; default: those of the engine's host
	Logger     *slog.Logger
}

// Network is the network of a sandbox.
type Network struct {
	Bridge string // name of its interface on the host
	Subnet netip.Prefix
	Policy Policy
}

func (n Network) equal(o Network) bool {
	return n.Bridge == o.Bridge && n.Subnet == o.Subnet && n.Policy.String() == o.Policy.String()
}

// Firewall manages the table of a deployment in the network namespace of an engine. Its methods may be called
// concurrently. They return errors of type *protocol.Error: failed_precondition with reason firewall_unavailable if
// this host cannot be protected, unavailable if a retry may help.
type Firewall struct {
	cfg   Config
	table string

	mu     sync.Mutex
	place  *namespace
	silent bool              // the kernel cannot reject before routing, so packets are dropped without a reply
	counts bool              // the kernel can count connections, as far as is known
	known  map[string]*entry // by bridge
	gone   map[string]uint64 // by bridge: when its network was forgotten, until a list is newer
	clock  uint64            // counts changes of known and gone
}

// entry is a network that should be protected.
type entry struct {
	Network
	set    uint64 // when it was protected, by the firewall's clock
	listed bool   // the engine has had the network since
}

// New returns a firewall. It does not read or change the host yet.
func New(cfg Config) *Firewall {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Firewall{cfg: cfg, table: "boxfleet-" + cfg.Deployment, counts: true, known: map[string]*entry{},
		gone: map[string]uint64{}}
}

// enter opens the engine's namespace if it is not open. The caller holds the lock.
func (f *Firewall) enter() error {
	if f.place != nil {
		return nil
	}
	place, err := findNamespace(f.cfg.Engine)
	if err == nil {
		f.place = place
	}
	return err
}

// Counts reports whether the connections of networks are limited, as far as is known.
func (f *Firewall) Counts() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts && f.cfg.MostConns > 0
}

// Close releases the namespace. The rules stay.
func (f *Firewall) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leave()
}

func (f *Firewall) leave() {
	if f.place != nil {
		f.place.close()
		f.place = nil
	}
}

// Protect writes, or rewrites, the rules of a network in one transaction. The network need not exist yet; it is
// protected from its first packet on.
func (f *Firewall) Protect(n Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.protect(n)
}

// Restore protects a network that should be protected already. It writes only if rules are missing, because reading
// costs the kernel much less than writing.
func (f *Firewall) Restore(n Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.known[n.Bridge]; e != nil && e.Network.equal(n) && f.place != nil && f.written(n.Bridge) {
		return nil
	}
	return f.protect(n)
}

func (f *Firewall) protect(n Network) error {
	f.clock++
	f.known[n.Bridge] = &entry{Network: n, set: f.clock}
	delete(f.gone, n.Bridge)
	if f.place == nil {
		return f.writeAll()
	}
	err := f.transact(func(s *script) error { return s.network(n) })
	if errors.Is(err, unix.ENOENT) { // the table is gone
		return f.writeAll()
	}
	return explain(err)
}

// Check verifies that the rules are in the namespace that the engine works in: one of the given bridges of the engine
// must be in the namespace that this firewall writes to.
func (f *Firewall) Check(bridges ...Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	here := func(n Network) bool {
		if !f.place.has(n.Bridge, n.Subnet) {
			return false
		}
		if e := f.known[n.Bridge]; e != nil && !e.listed {
			// The network exists from now on: an older list without it does not mean that it is gone.
			f.clock++
			e.listed, e.set = true, f.clock
		}
		return true
	}
	if f.place != nil && slices.ContainsFunc(bridges, here) {
		return nil
	}
	f.leave() // the engine may have moved
	if err := f.writeAll(); err != nil {
		return err
	}
	if !slices.ContainsFunc(bridges, here) {
		f.removeMisplaced()
		return unprotected("the engine's bridge %s is not in the network namespace of the process behind %s",
			bridges[0].Bridge, f.cfg.Engine)
	}
	return nil
}

// removeMisplaced removes the table from a namespace that is not the engine's: none of the bridges with rules is in
// that namespace.
func (f *Firewall) removeMisplaced() {
	ruled, err := f.bridges()
	if err != nil {
		f.leave()
		return
	}
	for bridge := range ruled {
		if subnet, ok := bridgeSubnet(bridge); ok && f.place.has(bridge, subnet) {
			return
		}
	}
	if err := f.transact(func(s *script) error { s.conn.DelTable(s.table); return nil }); err != nil {
		f.cfg.Logger.Warn("could not remove the rules from a network namespace that is not the engine's", "table", f.table,
			"error", err)
	}
	f.leave()
}

// Forget removes the rules of a network, which must be gone or empty. Absent is no error.
func (f *Firewall) Forget(bridge string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.known, bridge)
	f.clock++
	f.gone[bridge] = f.clock
	if f.place == nil {
		return nil // Sync removes the rules
	}
	return f.forget([]string{bridge})
}

// Gone records, after [Firewall.Forget], that the engine has removed the network, and removes its rules again. A Sync
// between the two may have restored them, with a list that still had the network.
func (f *Firewall) Gone(bridge string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock++
	f.gone[bridge] = f.clock
	if f.known[bridge] == nil || f.place == nil {
		return nil
	}
	delete(f.known, bridge)
	return f.forget([]string{bridge})
}

// Mark returns a point in time by the firewall's own clock, for [Firewall.Sync].
func (f *Firewall) Mark() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clock
}

// Sync rewrites all rules, which restores missing ones, and removes the rules of networks that are gone. listed are the
// engine's networks, listed after mark was taken; changes since then stay.
func (f *Firewall) Sync(mark uint64, listed []Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	present := map[string]bool{}
	for _, n := range listed {
		if f.gone[n.Bridge] > mark {
			continue
		}
		present[n.Bridge] = true
		if e := f.known[n.Bridge]; e == nil {
			f.known[n.Bridge] = &entry{Network: n, set: mark, listed: true}
		} else if e.set <= mark {
			e.listed = true
		}
	}
	for bridge, e := range f.known {
		if e.listed && e.set <= mark && !present[bridge] {
			delete(f.known, bridge)
		}
	}
	maps.DeleteFunc(f.gone, func(_ string, at uint64) bool { return at <= mark })
	f.leave() // the engine may have moved
	if err := f.writeAll(); err != nil {
		return err
	}
	return f.prune()
}

// prune removes the chains of bridges that belong to no known network. It may only be called with the engine's complete
// list of networks known: the networks that a worker has handled since its start are not all.
func (f *Firewall) prune() error {
	there, err := f.bridges()
	if err != nil {
		return explain(err)
	}
	maps.DeleteFunc(there, func(bridge string, _ bool) bool { return f.known[bridge] != nil })
	return f.forget(slices.Collect(maps.Keys(there)))
}

// writeAll writes all rules that should exist, and removes none. The caller holds the lock.
func (f *Firewall) writeAll() error {
	if err := f.enter(); err != nil {
		return err
	}
	err := f.transact(f.common)
	if errors.Is(err, unix.EOPNOTSUPP) && !f.silent {
		f.silent = true
		err = f.transact(f.common)
	}
	if errors.Is(err, unix.ENOENT) && f.counts && f.cfg.MostConns > 0 {
		f.counts = false
		if err = f.transact(f.common); err == nil {
			f.cfg.Logger.Warn("the kernel cannot count connections (nft_connlimit): a sandbox can fill the host's table")
		}
	}
	if err != nil {
		f.leave()
		return explain(err)
	}
	there, err := f.bridges()
	if err != nil {
		return explain(err)
	}
	networks, missing := make([]Network, 0, len(f.known)), 0
	for bridge, e := range f.known {
		networks = append(networks, e.Network)
		if e.listed && !there[bridge] {
			missing++
		}
	}
	if missing > 0 {
		f.cfg.Logger.Warn("restoring missing firewall rules of networks", "networks", missing)
	}
	for some := range slices.Chunk(networks, atOnce) {
		err := f.transact(func(s *script) error {
			for _, n := range some {
				if err := s.network(n); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return explain(err)
		}
	}
	return nil
}

func (f *Firewall) common(s *script) error {
	resolvers := f.place.resolvers()
	if len(f.cfg.Resolvers) > 0 {
		resolvers = nil
	}
	return s.common(resolvers, f.cfg.Resolvers, f.cfg.Deny)
}

// bridges returns the bridges that have a chain in the table.
func (f *Firewall) bridges() (map[string]bool, error) {
	conn, err := f.dial()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, c := range chains {
		if c.Table.Name == f.table && isBridge(c.Name) {
			there[c.Name] = true
		}
	}
	return there, nil
}

// written reports whether the chain of a bridge exists and has rules.
func (f *Firewall) written(bridge string) bool {
	conn, err := f.dial()
	if err != nil {
		return false
	}
	table := &nftables.Table{Name: f.table, Family: nftables.TableFamilyINet}
	rules, err := conn.GetRules(table, &nftables.Chain{Name: bridge, Table: table})
	return err == nil && len(rules) > 0
}

// isBridge reports whether a chain is that of a network, and not a common one.
func isBridge(chain string) bool {
	return !slices.Contains([]string{chainPrerouting, chainInput, chainNever, chainServers, chainInternet, chainPrivate,
		chainNone, chainRefuse, chainCounted}, chain)
}

// forget removes the chains of bridges. An incomplete set of rules is completed first, because a transaction that
// deletes something missing fails.
func (f *Firewall) forget(bridges []string) error {
	for _, bridge := range bridges {
		remove := func(s *script) error { return s.forget(bridge) }
		err := f.transact(remove)
		if !errors.Is(err, unix.ENOENT) {
			if err != nil {
				return explain(err)
			}
			continue
		}
		there, err := f.bridges()
		if err != nil {
			return explain(err)
		}
		if !there[bridge] {
			continue
		}
		complete := func(s *script) error {
			return s.network(Network{Bridge: bridge, Subnet: never[0], Policy: Policy{Mode: protocol.NetworkNone}})
		}
		if err := errors.Join(f.transact(complete), f.transact(remove)); err != nil {
			return explain(err)
		}
	}
	return nil
}

// Withdraw removes the chains of bridges that no longer exist, and the table when no chain is left. It is for a worker
// that no longer protects networks; existing networks keep their rules.
func (f *Firewall) Withdraw() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leave() // the engine may have moved
	if err := f.enter(); err != nil {
		return err
	}
	there, err := f.bridges()
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
		return f.forget(gone)
	}
	return f.remove()
}

// Remove removes the deployment's table, for a deployment that does not come back. Absent is no error.
func (f *Firewall) Remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.known)
	if err := f.enter(); err != nil {
		return err
	}
	return f.remove()
}

func (f *Firewall) remove() error {
	err := f.transact(func(s *script) error { s.conn.DelTable(s.table); return nil })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return explain(err)
}

// transact sends one transaction. The kernel applies it completely or not at all.
func (f *Firewall) transact(write func(*script) error) error {
	conn, err := f.dial()
	if err != nil {
		return err
	}
	most := 0
	if f.counts {
		most = f.cfg.MostConns
	}
	script := newScript(conn, f.table, f.silent, most)
	script.allowed = f.cfg.Allow
	if err := write(script); err != nil {
		return err
	}
	return conn.Flush()
}

// dial opens a netlink connection. Each use has its own, so that a late reply is never taken for the reply to another
// request.
func (f *Firewall) dial() (*nftables.Conn, error) {
	return nftables.New(nftables.WithNetNSFd(f.place.fd()), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(socketBuffer), c.SetWriteBuffer(socketBuffer),
			c.SetDeadline(time.Now().Add(transactionLimit)))
	}))
}

// DNS returns the name servers to configure in the containers of a network with this policy, in addition to the
// engine's own names; nil leaves them to the engine. A network that may not reach the internet gets only name servers
// that its policy allows: the engine would query others from outside of the network, and names can carry data out.
func (f *Firewall) DNS(p Policy) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	servers := f.cfg.Resolvers
	if len(servers) == 0 && !p.internet() && f.enter() == nil {
		servers = f.place.resolvers()
	}
	var list []string
	for _, a := range servers {
		single := netip.PrefixFrom(a, 32)
		if p.internet() || p.allows(a, f.cfg.Allow) && !protocol.RangeWithin(single, never) &&
			!protocol.RangeWithin(single, f.cfg.Deny) {
			list = append(list, a.String())
		}
	}
	if len(list) == 0 && !p.internet() {
		list = []string{deadResolver}
	}
	return list
}

// deadResolver never answers: the engine queries it from inside the container, where the address means the container
// itself.
const deadResolver = "0.0.0.0"

// Withheld returns the first private range of a policy that the operator does not let policies allow.
func (f *Firewall) Withheld(p Policy) (index int, is bool) {
	i := slices.IndexFunc(p.Allow, func(r netip.Prefix) bool {
		return protocol.PrivateRange(r) &&
			!protocol.RangeWithin(r, f.cfg.Allow)
	})
	return i, i >= 0
}

// Denied returns the first range of a policy that no sandbox may reach: a special range, the sandboxes' own pool, an
// address of the host, or a range that the operator denies.
func (f *Firewall) Denied(p Policy) (index int, is bool) {
	denied := slices.Concat(never, f.cfg.Deny)
	if f.cfg.Pool.IsValid() {
		denied = append(denied, f.cfg.Pool)
	}
	for _, a := range f.Own() {
		denied = append(denied, netip.PrefixFrom(a, a.BitLen()))
	}
	for i, r := range p.Allow {
		if protocol.RangeWithin(r, denied) {
			return i, true
		}
	}
	return 0, false
}

func unprotected(format string, args ...any) error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonFirewall, format, args...)
}

// explain translates an error of the kernel.
func explain(err error) error {
	var known *protocol.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return unprotected("the worker may not write nftables rules in the engine's network namespace (CAP_NET_ADMIN): %v",
			err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP),
		errors.Is(err, unix.ENOENT):
		return unprotected("the kernel lacks what nftables needs: %v", err)
	}
	return protocol.Errorf(protocol.Unavailable, "", "write nftables rules: %s", strings.TrimSpace(err.Error()))
}
