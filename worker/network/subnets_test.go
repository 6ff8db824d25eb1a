package network

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func newPool(t *testing.T, pool string) *Subnets {
	t.Helper()
	s, err := NewSubnets(pool)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// takeAll takes every free subnet. It fails the test unless Free returned the number of these subnets.
func takeAll(t *testing.T, s *Subnets) (list []string) {
	t.Helper()
	free := s.Free()
	for {
		p, err := s.Take()
		if err != nil {
			break
		}
		list = append(list, p.Addr().String())
	}
	if len(list) != free || s.Free() != 0 {
		t.Errorf("%d subnets were free, %d were taken, and %d are left", free, len(list), s.Free())
	}
	slices.Sort(list)
	return list
}

func TestASubnetInUseIsNotTakenUntilItIsFree(t *testing.T) {
	s := newPool(t, "10.201.0.0/26") // four subnets
	network, other := netip.MustParsePrefix("10.201.0.0/28"), netip.MustParsePrefix("10.201.0.32/27")
	s.Use(network)
	s.begin()
	s.update([]netip.Prefix{network, other}) // the network's own bridge, and another interface
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.16"}) {
		t.Errorf("with three subnets in use, the free subnets are %q", got)
	}
	s.unmarkForeign(netip.MustParsePrefix("10.201.0.48/28"))
	s.Release(network)
	s.unmarkForeign(netip.MustParsePrefix("10.201.0.16/28")) // has no effect, because this worker took the subnet
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.0", "10.201.0.48"}) {
		t.Errorf("after one subnet was unmarked and one released, the free subnets are %q", got)
	}
	s.MarkForeign(network)
	if got := takeAll(t, s); len(got) != 0 {
		t.Errorf("a foreign subnet was free: %q", got)
	}
	s.begin()
	s.update(nil) // the foreign network and the interface are gone
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.0", "10.201.0.32"}) {
		t.Errorf("after the foreign users are gone, the free subnets are %q", got)
	}
}

func TestAPoolThatIsCompletelyUsedByOthersHasNoFreeSubnets(t *testing.T) {
	s := newPool(t, "10.201.0.0/16")
	s.update([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
	if n := s.Free(); n != 0 {
		t.Errorf("%d subnets are free, want 0", n)
	}
	s.begin()
	s.update([]netip.Prefix{netip.MustParsePrefix("10.201.0.0/17"), netip.MustParsePrefix("10.201.255.0/24"),
		netip.MustParsePrefix("fd00::/8")})
	if n := s.Free(); n != 2048-16 {
		t.Errorf("%d subnets are free, want %d", n, 2048-16)
	}
}

// Reading the list of subnets takes time, so the list may be outdated when it is processed.
func TestAnUpdateKeepsChangesThatWereMadeWhileItsListWasRead(t *testing.T) {
	s := newPool(t, "10.201.0.0/26")
	at := func(i uint32) []netip.Prefix { return []netip.Prefix{s.at(i)} }
	s.Use(s.at(0))
	if _, err := s.Take(); err != nil { // the subnet at 1, whose network does not exist yet
		t.Fatal(err)
	}
	s.begin()
	listed := at(0)
	s.Release(s.at(0)) // the network at 0 was removed
	s.Use(s.at(2))     // a network at 2 was created
	s.MarkForeign(s.at(3))
	s.update(listed)
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.0"}) {
		t.Errorf("after an update with an outdated list, the free subnets are %q", got)
	}
	s.begin()
	s.update(nil) // the network at 2 was removed by hand, and the foreign network at 3 too
	if got := takeAll(t, s); !slices.Equal(got, []string{"10.201.0.32", "10.201.0.48"}) {
		t.Errorf("after an update with a new list, the free subnets are %q", got)
	}
}

func TestANetworkHasAnAddressForEachContainer(t *testing.T) {
	const reserved = 3 // the addresses of the network, of its gateway, and for broadcasts
	if n := 1<<(32-subnetBits) - reserved; n < protocol.MaxServices+1 {
		t.Errorf("a network has addresses for %d containers, but a sandbox may have %d", n, protocol.MaxServices+1)
	}
}

func TestQ11_SubnetsDoNotRunOut(t *testing.T) {
	s := newPool(t, "10.201.0.0/16")
	s.update([]netip.Prefix{netip.MustParsePrefix("10.201.0.0/24"),
		netip.MustParsePrefix("192.168.0.0/16")}) // subnets of foreign networks
	if n := s.Free(); n != 4096-16 {
		t.Errorf("%d subnets are free, want %d", n, 4096-16)
	}
	taken := map[netip.Prefix]bool{}
	for range 4096 - 16 {
		p, err := s.Take()
		if err != nil {
			t.Fatalf("after %d subnets: %v", len(taken), err)
		}
		if taken[p] || p.Overlaps(netip.MustParsePrefix("10.201.0.0/24")) || p.Bits() != subnetBits {
			t.Fatalf("subnet %s is in use or has the wrong size", p)
		}
		taken[p] = true
	}
	if p, err := s.Take(); protocol.CodeOf(err) != protocol.ResourceExhausted {
		t.Fatalf("taking a subnet from a used-up pool: got %s and error %v, want resource_exhausted", p, err)
	}
	released := netip.MustParsePrefix("10.201.7.16/28")
	s.Release(released)
	if p, err := s.Take(); err != nil || p != released {
		t.Errorf("got %s, %v, want the released subnet %s", p, err, released)
	}
}

func TestInvalidNetworkPoolsAreRefused(t *testing.T) {
	for _, pool := range []string{"", "10.0.0.0/29", "10.0.0.1", "fd00::/64", "x",
		"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/8", "0.0.0.0/0", "8.8.8.0/24", "172.0.0.0/8"} {
		if _, err := NewSubnets(pool); protocol.AsError(err) == nil || protocol.AsError(err).Field != "network_pool" {
			t.Errorf("pool %q: got %v, want an error for the field network_pool", pool, err)
		}
	}
}
