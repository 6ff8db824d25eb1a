package worker

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func newPool(t *testing.T, pool string) *subnets {
	t.Helper()
	s, err := newSubnets(pool)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// takeAll takes what the pool gives, which must be as much as it said to have.
func takeAll(t *testing.T, s *subnets) (list []string) {
	t.Helper()
	free := s.free()
	for {
		p, err := s.take()
		if err != nil {
			break
		}
		list = append(list, p.Addr().String())
	}
	if len(list) != free || s.free() != 0 {
		t.Errorf("%d subnets were free, %d were given out, and %d are left", free, len(list), s.free())
	}
	slices.Sort(list)
	return list
}

func TestASubnetThatSomebodyHasIsNotGivenOutUntilItIsGone(t *testing.T) {
	s := newPool(t, "10.201.0.0/26") // four
	network, other := netip.MustParsePrefix("10.201.0.0/28"), netip.MustParsePrefix("10.201.0.32/27")
	s.use(network)
	s.begin()
	s.look([]netip.Prefix{network, other}) // the network's own bridge, and an interface
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.16"}) {
		t.Errorf("given out: %q", got)
	}
	s.regain(netip.MustParsePrefix("10.201.0.48/28"))
	s.give(network)
	s.regain(netip.MustParsePrefix("10.201.0.16/28")) // which is used
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.0", "10.201.0.48"}) {
		t.Errorf("given out: %q", got)
	}
	s.passOver(network)
	if got := takeAll(t, s); len(got) != 0 {
		t.Errorf("given out: %q", got)
	}
	s.begin()
	s.look(nil) // what was passed over is gone, and so is the interface
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.0", "10.201.0.32"}) {
		t.Errorf("given out: %q", got)
	}
}

func TestAHostWhoseWholePoolSomebodyHasIsFull(t *testing.T) {
	s := newPool(t, "10.201.0.0/16")
	s.look([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
	if n := s.free(); n != 0 {
		t.Errorf("%d subnets are free", n)
	}
	s.begin()
	s.look([]netip.Prefix{netip.MustParsePrefix("10.201.0.0/17"), netip.MustParsePrefix("10.201.255.0/24"), netip.MustParsePrefix("fd00::/8")})
	if n := s.free(); n != 2048-16 {
		t.Errorf("%d subnets are free", n)
	}
}

// TestALookDoesNotUndoWhatHappenedMeanwhile: a look lists what there is, and says so later.
func TestALookDoesNotUndoWhatHappenedMeanwhile(t *testing.T) {
	s := newPool(t, "10.201.0.0/26")
	at := func(i uint32) []netip.Prefix { return []netip.Prefix{s.at(i)} }
	s.use(s.at(0))
	if _, err := s.take(); err != nil { // at 1, whose network is made for a long time
		t.Fatal(err)
	}
	s.begin()
	found := at(0)
	s.give(s.at(0)) // its network was removed
	s.use(s.at(2))  // and another was made
	s.passOver(s.at(3))
	s.look(found)
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.0"}) {
		t.Errorf("given out: %q", got)
	}
	s.begin()
	s.look(nil) // somebody removed the network at 2 by hand; nobody has what is at 3
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.32", "10.201.0.48"}) {
		t.Errorf("given out: %q", got)
	}
}

func TestANetworkHasAnAddressForEachContainer(t *testing.T) {
	const own = 3 // the network, its gateway, its broadcasts
	if n := 1<<(32-subnetBits) - own; n < protocol.MaxServices+1 {
		t.Errorf("a network has addresses for %d containers, a sandbox may have %d", n, protocol.MaxServices+1)
	}
}

func TestQ11_SubnetsDoNotRunOut(t *testing.T) {
	s, err := newSubnets("10.201.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	s.look([]netip.Prefix{netip.MustParsePrefix("10.201.0.0/24"), netip.MustParsePrefix("192.168.0.0/16")}) // somebody else's networks
	if n := s.free(); n != 4096-16 {
		t.Errorf("%d are free", n)
	}
	seen := map[netip.Prefix]bool{}
	for range 4096 - 16 {
		p, err := s.take()
		if err != nil {
			t.Fatalf("after %d subnets: %v", len(seen), err)
		}
		if seen[p] || p.Overlaps(netip.MustParsePrefix("10.201.0.0/24")) || p.Bits() != subnetBits {
			t.Fatalf("subnet %s is taken or of the wrong size", p)
		}
		seen[p] = true
	}
	if p, err := s.take(); protocol.CodeOf(err) != protocol.ResourceExhausted {
		t.Fatalf("a subnet beyond the pool: %s, %v", p, err)
	}
	back := netip.MustParsePrefix("10.201.7.16/28")
	s.give(back)
	if p, err := s.take(); err != nil || p != back {
		t.Errorf("got %s, %v, want the one that was given back, %s", p, err, back)
	}
}

func TestNetworkPoolIsChecked(t *testing.T) {
	for _, pool := range []string{"", "10.0.0.0/29", "10.0.0.1", "fd00::/64", "x",
		"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/8", "0.0.0.0/0", "8.8.8.0/24", "172.0.0.0/8"} {
		if _, err := newSubnets(pool); protocol.AsError(err) == nil || protocol.AsError(err).Field != "network_pool" {
			t.Errorf("pool %q: %v, want an error that names the field", pool, err)
		}
	}
}
