package firewall

import (
	"errors"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	transactionLimit = 10 * time.Second
	socketBuffer     = 8 << 20 // must hold the kernel's replies to one transaction
	atOnce           = 64      // maximum number of networks in one transaction
)

// table reads and writes the deployment's nftables table by netlink. The table shows which rules the kernel has; the
// [ledger] shows which networks should have rules. Callers hold the host's lock and have entered the namespace.
type table struct {
	host   *host
	cfg    *Config
	name   string
	silent bool // drop packets without a reply, because the kernel cannot reject packets before routing
	counts bool // the kernel can count connections; true until a write shows the contrary
}

// writeCommon writes the rules that all networks share. Some kernels do not support replies to refused packets, or a
// limit of connections. writeCommon then leaves out the rules that need this support.
func (t *table) writeCommon() error {
	err := t.transact(t.common)
	if errors.Is(err, unix.EOPNOTSUPP) && !t.silent {
		t.silent = true
		err = t.transact(t.common)
	}
	if errors.Is(err, unix.ENOENT) && t.counts && t.cfg.MostConns > 0 {
		t.counts = false
		if err = t.transact(t.common); err == nil {
			t.cfg.Logger.Warn("the kernel cannot count connections, because it lacks the module nft_connlimit: " +
				"one sandbox can fill the host's connection table")
		}
	}
	return err
}

func (t *table) common(s *script) error {
	resolvers := t.host.place.resolvers()
	if len(t.cfg.Resolvers) > 0 {
		resolvers = nil
	}
	return s.common(resolvers, t.cfg.Resolvers, t.cfg.Deny)
}

// writeNetworks writes the rules of networks. Each transaction has the rules of several networks.
func (t *table) writeNetworks(networks []Network) error {
	for some := range slices.Chunk(networks, atOnce) {
		err := t.transact(func(s *script) error {
			for _, n := range some {
				if err := s.network(n); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// bridges returns the bridges that have a chain in the table.
func (t *table) bridges() (map[string]bool, error) {
	conn, err := t.dial()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, c := range chains {
		if c.Table.Name == t.name && isBridge(c.Name) {
			there[c.Name] = true
		}
	}
	return there, nil
}

// written reports whether the chain of a bridge exists and has rules.
func (t *table) written(bridge string) bool {
	conn, err := t.dial()
	if err != nil {
		return false
	}
	own := &nftables.Table{Name: t.name, Family: nftables.TableFamilyINet}
	rules, err := conn.GetRules(own, &nftables.Chain{Name: bridge, Table: own})
	return err == nil && len(rules) > 0
}

// isBridge reports whether a chain belongs to a network's bridge, and is not one of the common chains.
func isBridge(chain string) bool {
	return !slices.Contains([]string{chainPrerouting, chainInput, chainNever, chainServers, chainInternet, chainPrivate,
		chainNone, chainRefuse, chainCounted}, chain)
}

// forget removes the rules of bridges. A transaction fails if it deletes a rule that is missing. After such a failure,
// forget restores the rules of the bridge, and then removes all of them.
func (t *table) forget(bridges []string) error {
	for _, bridge := range bridges {
		remove := func(s *script) error { return s.forget(bridge) }
		err := t.transact(remove)
		if !errors.Is(err, unix.ENOENT) {
			if err != nil {
				return explain(err)
			}
			continue
		}
		there, err := t.bridges()
		if err != nil {
			return explain(err)
		}
		if !there[bridge] {
			continue
		}
		complete := func(s *script) error {
			return s.network(Network{Bridge: bridge, Subnet: never[0], Policy: Policy{Mode: protocol.NetworkNone}})
		}
		if err := errors.Join(t.transact(complete), t.transact(remove)); err != nil {
			return explain(err)
		}
	}
	return nil
}

// drop removes the table. It fails if the table does not exist.
func (t *table) drop() error {
	return t.transact(func(s *script) error { s.conn.DelTable(s.table); return nil })
}

// remove removes the table. A table that does not exist is no error.
func (t *table) remove() error {
	err := t.drop()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return explain(err)
}

// recorded lists the bridges in the table's record.
func (t *table) recorded() ([]string, error) {
	conn, err := t.dial()
	if err != nil {
		return nil, err
	}
	elements, err := conn.GetSetElements(newScript(conn, t.name, false, 0).made)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	bridges := make([]string, len(elements))
	for i, e := range elements {
		bridges[i] = unix.ByteSliceToString(e.Key)
	}
	return bridges, err
}

// unrecord removes bridges from the record.
func (t *table) unrecord(bridges []string) error {
	if len(bridges) == 0 {
		return nil
	}
	return t.transact(func(s *script) error {
		keys := make([]nftables.SetElement, len(bridges))
		for i, b := range bridges {
			keys[i].Key = ifname(b)
		}
		return s.conn.SetDeleteElements(s.made, keys)
	})
}

// protectedByOthers returns the bridges that have a chain in the table of another deployment.
func (t *table) protectedByOthers() (map[string]bool, error) {
	conn, err := t.dial()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	others := map[string]bool{}
	for _, c := range chains {
		if c.Table.Name != t.name {
			others[c.Name] = true
		}
	}
	return others, err
}

// transact sends one transaction. The kernel applies it completely or not at all.
func (t *table) transact(write func(*script) error) error {
	conn, err := t.dial()
	if err != nil {
		return err
	}
	most := 0
	if t.counts {
		most = t.cfg.MostConns
	}
	script := newScript(conn, t.name, t.silent, most)
	script.allowed = t.cfg.Allow
	if err := write(script); err != nil {
		return err
	}
	return conn.Flush()
}

// dial opens a netlink connection. Each request uses its own connection, so that a late reply to one request is never
// mistaken for the reply to another request.
func (t *table) dial() (*nftables.Conn, error) {
	return nftables.New(nftables.WithNetNSFd(t.host.place.fd()), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(socketBuffer), c.SetWriteBuffer(socketBuffer),
			c.SetDeadline(time.Now().Add(transactionLimit)))
	}))
}
