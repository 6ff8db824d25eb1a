package firewall

import "maps"

// ledger records which networks should be protected, and which were removed recently. A list of the engine's networks
// may be outdated by the time it is processed. The ledger's clock tells which changes are newer than the list.
type ledger struct {
	known map[string]*entry // by bridge
	gone  map[string]uint64 // by bridge: when its network was removed; kept until a newer list has been processed
	clock uint64            // counts the changes of known and gone
}

// entry is a network that should be protected.
type entry struct {
	Network
	set    uint64 // the ledger's clock when the network was added or confirmed
	listed bool   // the engine has had the network at some time since the network was added here
}

func newLedger() ledger { return ledger{known: map[string]*entry{}, gone: map[string]uint64{}} }

// has reports whether the bridge belongs to a known network.
func (l *ledger) has(bridge string) bool { return l.known[bridge] != nil }

// holds reports whether the network is known with the same bridge, subnet and policy.
func (l *ledger) holds(n Network) bool {
	e := l.known[n.Bridge]
	return e != nil && e.Network.equal(n)
}

// add records a network that should be protected.
func (l *ledger) add(n Network) {
	l.clock++
	l.known[n.Bridge] = &entry{Network: n, set: l.clock}
	delete(l.gone, n.Bridge)
}

// confirm records that the engine has the network of a bridge. A list without the network proves that the network is
// gone only if the list was read after this call.
func (l *ledger) confirm(bridge string) {
	if e := l.known[bridge]; e != nil && !e.listed {
		l.clock++
		e.listed, e.set = true, l.clock
	}
}

// forget removes a network that should no longer be protected.
func (l *ledger) forget(bridge string) { delete(l.known, bridge) }

// markGone records that a network is gone. Lists that were read before this call no longer add the network.
func (l *ledger) markGone(bridge string) {
	l.clock++
	l.gone[bridge] = l.clock
}

// clear forgets all networks.
func (l *ledger) clear() { clear(l.known) }

// update processes a list of the engine's networks. The parameter mark is a value that the clock had before the list
// was read. Changes since then take precedence over the list.
func (l *ledger) update(mark uint64, listed []Network) {
	present := map[string]bool{}
	for _, n := range listed {
		if l.gone[n.Bridge] > mark {
			continue
		}
		present[n.Bridge] = true
		if e := l.known[n.Bridge]; e == nil {
			l.known[n.Bridge] = &entry{Network: n, set: mark, listed: true}
		} else if e.set <= mark {
			e.listed = true
		}
	}
	for bridge, e := range l.known {
		if e.listed && e.set <= mark && !present[bridge] {
			delete(l.known, bridge)
		}
	}
	maps.DeleteFunc(l.gone, func(_ string, at uint64) bool { return at <= mark })
}

// networks returns the known networks. The parameter ruled has the bridges with rules. The second result counts the
// known networks that exist on the engine, but have no rules.
func (l *ledger) networks(ruled map[string]bool) (networks []Network, missing int) {
	networks = make([]Network, 0, len(l.known))
	for bridge, e := range l.known {
		networks = append(networks, e.Network)
		if e.listed && !ruled[bridge] {
			missing++
		}
	}
	return networks, missing
}
