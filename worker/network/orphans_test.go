package network

import (
	"net/netip"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

func TestABridgeIsAnOrphanFromWhenItWasFirstFoundWithoutANetwork(t *testing.T) {
	bridge := func(subnet string, index int) firewall.Bridge {
		p := netip.MustParsePrefix(subnet)
		return firewall.Bridge{Name: firewall.BridgeName(p), Subnet: p, Index: index}
	}
	one, two := bridge("10.201.0.0/28", 1), bridge("10.201.0.16/28", 2)
	first, second, third := time.Unix(1, 0), time.Unix(2, 0), time.Unix(3, 0)

	pool := netip.MustParsePrefix("10.201.0.0/16")
	o := orphans(nil).update([]firewall.Bridge{one, two}, pool, nil, nil, first)
	if len(o) != 2 || !o[one].Equal(first) {
		t.Fatalf("first update: %v", o)
	}
	used := []netip.Prefix{netip.MustParsePrefix("10.201.0.0/24")} // by any network
	if got := o.update([]firewall.Bridge{one, two}, pool, used, nil, second); len(got) != 0 {
		t.Errorf("orphans although their subnet is in use: %v", got)
	}
	if got := o.update([]firewall.Bridge{one}, pool, nil, []docker.Network{{Bridge: one.Name}}, second); len(got) != 0 {
		t.Errorf("an orphan although a network has the bridge: %v", got)
	}
	if got := o.update([]firewall.Bridge{one}, netip.MustParsePrefix("10.202.0.0/16"), nil, nil, second); len(got) != 0 {
		t.Errorf("an orphan outside of this worker's pool: %v", got)
	}
	o = o.update([]firewall.Bridge{one}, pool, nil, nil, second) // the other has a network now
	if len(o) != 1 || !o[one].Equal(first) {
		t.Errorf("second update: %v", o)
	}
	again := one
	again.Index++ // deleted and created again
	o = o.update([]firewall.Bridge{again, two}, pool, nil, nil, third)
	if len(o) != 2 || !o[again].Equal(third) || !o[two].Equal(third) {
		t.Errorf("third update: %v", o)
	}
}
