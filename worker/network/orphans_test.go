package network

import (
	"net/netip"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

func TestABridgeIsAnOrphanSinceItWasFirstFoundWithoutANetwork(t *testing.T) {
	bridge := func(subnet string, index int) firewall.Bridge {
		p := netip.MustParsePrefix(subnet)
		return firewall.Bridge{Name: firewall.BridgeName(p), Subnet: p, Index: index}
	}
	one, two := bridge("10.201.0.0/28", 1), bridge("10.201.0.16/28", 2)
	first, second, third := time.Unix(1, 0), time.Unix(2, 0), time.Unix(3, 0)

	pool := netip.MustParsePrefix("10.201.0.0/16")
	o := orphans(nil).update([]firewall.Bridge{one, two}, pool, nil, nil, first)
	if len(o) != 2 || !o[one].Equal(first) {
		t.Fatalf("after the first update, the orphans are %v, want both bridges since the update", o)
	}
	used := []netip.Prefix{netip.MustParsePrefix("10.201.0.0/24")} // the subnet of some network
	if got := o.update([]firewall.Bridge{one, two}, pool, used, nil, second); len(got) != 0 {
		t.Errorf("bridges whose subnets are in use are orphans: %v", got)
	}
	if got := o.update([]firewall.Bridge{one}, pool, nil, []docker.Network{{Bridge: one.Name}}, second); len(got) != 0 {
		t.Errorf("a bridge that a network has is an orphan: %v", got)
	}
	if got := o.update([]firewall.Bridge{one}, netip.MustParsePrefix("10.202.0.0/16"), nil, nil, second); len(got) != 0 {
		t.Errorf("a bridge outside of this worker's pool is an orphan: %v", got)
	}
	o = o.update([]firewall.Bridge{one}, pool, nil, nil, second) // bridge two is no longer abandoned
	if len(o) != 1 || !o[one].Equal(first) {
		t.Errorf("after the second update, the orphans are %v, want the first bridge since the first update", o)
	}
	again := one
	again.Index++ // the bridge was deleted and created again
	o = o.update([]firewall.Bridge{again, two}, pool, nil, nil, third)
	if len(o) != 2 || !o[again].Equal(third) || !o[two].Equal(third) {
		t.Errorf("after the third update, the orphans are %v, want both bridges since this update", o)
	}
}
