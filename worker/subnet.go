package worker

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

const subnetBits = firewall.SubnetBits

// subnets gives each sandbox a subnet of the worker's own pool, since Docker's default pools end
// after about thirty networks.
type subnets struct {
	mu      sync.Mutex
	pool    netip.Prefix
	taken   map[netip.Prefix]bool // ours, and those of the engine's other networks
	avoided map[netip.Prefix]bool // those that an interface of the machine has, and no network
	next    uint32                // where the search goes on: a subnet that was given back rests first
}

func newSubnets(pool string) (*subnets, error) {
	p, err := netip.ParsePrefix(pool)
	if err != nil || !p.Addr().Is4() || p.Bits() > subnetBits {
		return nil, protocol.Invalid("network_pool", "must be an IPv4 prefix of /%d or more addresses, got %.40q", subnetBits, pool)
	}
	return &subnets{pool: p.Masked(), taken: map[netip.Prefix]bool{}, avoided: map[netip.Prefix]bool{}}, nil
}

// size is how many subnets the pool has.
func (s *subnets) size() uint32 { return 1 << (subnetBits - s.pool.Bits()) }

func (s *subnets) at(i uint32) netip.Prefix {
	base := s.pool.Addr().As4()
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], binary.BigEndian.Uint32(base[:])+i<<(32-subnetBits))
	return netip.PrefixFrom(netip.AddrFrom4(addr), subnetBits)
}

// use marks what somebody has: a subnet of ours, or any prefix that overlaps some of the pool.
func (s *subnets) use(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.within(p) {
		s.taken[q] = true
		delete(s.avoided, q)
	}
}

// avoid marks what an interface of the machine has. Where a network has it, it is that network's.
func (s *subnets) avoid(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.within(p) {
		s.avoided[q] = !s.taken[q]
	}
}

// within lists the subnets of the pool that a prefix overlaps.
func (s *subnets) within(p netip.Prefix) []netip.Prefix {
	if !p.Overlaps(s.pool) {
		return nil
	}
	if p.Bits() >= subnetBits {
		return []netip.Prefix{netip.PrefixFrom(p.Addr(), subnetBits).Masked()}
	}
	var found []netip.Prefix
	for i := range s.size() {
		if q := s.at(i); p.Overlaps(q) {
			found = append(found, q)
		}
	}
	return found
}

// machineSubnets lists the subnets of the machine's own interfaces. An engine lets a network overlap
// one that it does not know, such as a bridge that another life of it left behind, whose rules then
// break the traffic in the new one.
func machineSubnets() (found []netip.Prefix) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			found = append(found, p.Masked())
		}
	}
	return found
}

// take gives out a free subnet. Error: resource_exhausted.
func (s *subnets) take() (netip.Prefix, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range s.size() {
		p := s.at(s.next)
		s.next = (s.next + 1) % s.size()
		if !s.taken[p] && !s.avoided[p] {
			s.taken[p] = true
			return p, nil
		}
	}
	return netip.Prefix{}, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonNoNetwork, "all %d subnets of %s are taken", s.size(), s.pool)
}

// passOver puts a subnet that was just taken among those that are avoided.
func (s *subnets) passOver(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, p)
	s.avoided[p] = true
}

// regain gives out again what was avoided: its interface is gone.
func (s *subnets) regain(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.avoided, p)
}

// give takes a subnet back.
func (s *subnets) give(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, p)
}
