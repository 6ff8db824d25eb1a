package firewall

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
)

// An engine that is killed while it creates a network leaves the network's bridge behind, and does not know the bridge
// after its restart. The table therefore has a record of bridges: a set with their names. A name is added before the
// engine is asked to create the bridge, and removed when the bridge is known to be gone. Several deployments, or
// several engines, may share one network namespace. The record tells which deployment a bridge belongs to.

// Bridge is a bridge in the engine's network namespace that was created for this deployment.
type Bridge struct {
	Name   string
	Subnet netip.Prefix // derived from Name
	Index  int          // number of the interface; changes if the bridge is deleted and created again
}

// Abandoned lists the bridges that were created for this deployment and belong to no known network. It does not list
// bridges for which another deployment has rules, or bridges to which interfaces are attached. It also removes from the
// record the bridges that no longer exist.
func (f *Firewall) Abandoned() ([]Bridge, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	abandoned, err := f.abandoned()
	return abandoned, explain(err)
}

// RemoveBridge removes a bridge if [Firewall.Abandoned] would still list it, and reports whether it removed the bridge.
func (f *Firewall) RemoveBridge(b Bridge) (removed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	still, err := f.abandoned()
	if err != nil || !slices.Contains(still, b) {
		return false, explain(err)
	}
	if err := f.place.removeLink(b.Index); err != nil {
		return false, explain(err)
	}
	return true, explain(f.table.unrecord([]string{b.Name}))
}

func (f *Firewall) abandoned() ([]Bridge, error) {
	if f.place == nil {
		return nil, nil
	}
	unknown, err := f.unknownBridges()
	if err != nil || len(unknown) == 0 {
		return nil, err
	}
	links, err := f.place.links()
	if err != nil {
		return nil, err
	}
	others, err := f.table.protectedByOthers()
	if err != nil {
		return nil, err
	}
	var abandoned []Bridge
	var gone []string
	for _, name := range unknown {
		i := slices.IndexFunc(links, func(l link) bool { return l.name == name })
		if i < 0 {
			gone = append(gone, name)
			continue
		}
		subnet, ok := bridgeSubnet(name)
		if ok && links[i].abandoned(links) && !others[name] {
			abandoned = append(abandoned, Bridge{Name: name, Subnet: subnet, Index: links[i].index})
		}
	}
	return abandoned, f.table.unrecord(gone)
}

// unknownBridges lists the recorded bridges that belong to no known network.
func (f *Firewall) unknownBridges() ([]string, error) {
	recorded, err := f.table.recorded()
	return slices.DeleteFunc(recorded, f.ledger.has), err
}

// bridgeSubnet returns the subnet of the bridge with this name. It is the inverse of [BridgeName].
func bridgeSubnet(name string) (netip.Prefix, bool) {
	text, ok := strings.CutPrefix(name, BridgePrefix)
	address, err := hex.DecodeString(text)
	if !ok || err != nil || len(address) != 4 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(address)), SubnetBits), true
}
