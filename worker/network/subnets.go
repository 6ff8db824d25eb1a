package network

import (
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

const subnetBits = firewall.SubnetBits

// Subnets gives each sandbox a subnet from the worker's own pool. Docker's default pools would be used up after about
// thirty networks. The methods of Subnets may be called concurrently.
type Subnets struct {
	mu      sync.Mutex
	pool    netip.Prefix
	ours    map[netip.Prefix]bool // subnets that this worker took; true if the engine has had a network with the subnet
	foreign map[netip.Prefix]bool // subnets that others used at the last update; disjoint from ours
	// subnets taken or released since begin was called; the list that update gets may be wrong about them
	moved map[netip.Prefix]bool
	next  uint32 // where the next search begins, so that a released subnet is reused as late as possible
}

// poolRanges are the ranges within which a pool must lie. Loopback, link-local and multicast addresses do not work in
// an engine's network. With a public range, sandboxes could not reach the machines on the internet that have these
// addresses.
var poolRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("198.18.0.0/15"),
}

// NewSubnets returns the subnets of a pool. Error: invalid_argument for the field network_pool.
func NewSubnets(pool string) (*Subnets, error) {
	p, err := netip.ParsePrefix(pool)
	if err != nil || !p.Addr().Is4() || p.Bits() > subnetBits {
		return nil, protocol.Invalid("network_pool", "must be an IPv4 prefix of /%d or larger, got %.40q", subnetBits, pool)
	}
	if !protocol.IsWithinAny(p, poolRanges) {
		return nil, protocol.Invalid("network_pool", "must lie in a private range (%s), got %.40q",
			strings.Join(rangeTexts(poolRanges), ", "), pool)
	}
	return &Subnets{pool: p.Masked(), ours: map[netip.Prefix]bool{}, foreign: map[netip.Prefix]bool{},
		moved: map[netip.Prefix]bool{}}, nil
}

// Pool returns the prefix from which the subnets are taken.
func (s *Subnets) Pool() netip.Prefix { return s.pool }

// size returns the number of subnets in the pool.
func (s *Subnets) size() uint32 { return 1 << (subnetBits - s.pool.Bits()) }

func (s *Subnets) at(i uint32) netip.Prefix {
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], number(s.pool.Addr())+i<<(32-subnetBits))
	return netip.PrefixFrom(netip.AddrFrom4(addr), subnetBits)
}

// Use records that the subnet of an existing network belongs to this worker.
func (s *Subnets) Use(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.within(p) {
		s.ours[q], s.moved[q] = true, true
		delete(s.foreign, q)
	}
}

// begin must be called before the host's subnets are listed for [Subnets.update].
func (s *Subnets) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.moved)
}

// update processes the list of subnets in use on the host. The list has the subnets of the machine's interfaces and of
// all networks on the engine, including this worker's networks. update frees the subnets that are no longer in use.
func (s *Subnets) update(listed []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := map[netip.Prefix]bool{}
	for _, p := range listed {
		for _, q := range s.within(p) {
			used[q] = true
		}
	}
	maps.DeleteFunc(s.ours, func(p netip.Prefix, had bool) bool { return had && !used[p] && !s.moved[p] })
	maps.DeleteFunc(s.foreign, func(p netip.Prefix, _ bool) bool { return !s.moved[p] })
	for p := range used {
		if _, ours := s.ours[p]; !ours && !s.moved[p] {
			s.foreign[p] = true
		}
	}
}

// within lists the subnets of the pool that a prefix overlaps.
func (s *Subnets) within(p netip.Prefix) []netip.Prefix {
	if !p.Overlaps(s.pool) {
		return nil
	}
	if p.Bits() >= subnetBits {
		return []netip.Prefix{netip.PrefixFrom(p.Addr(), subnetBits).Masked()}
	}
	first, n := uint32(0), s.size()
	if p.Bits() > s.pool.Bits() {
		first, n = number(p.Masked().Addr())-number(s.pool.Addr()), 1<<(subnetBits-p.Bits())
		first >>= 32 - subnetBits
	}
	overlapping := make([]netip.Prefix, 0, n)
	for i := first; i < first+n; i++ {
		overlapping = append(overlapping, s.at(i))
	}
	return overlapping
}

func number(a netip.Addr) uint32 {
	bytes := a.As4()
	return binary.BigEndian.Uint32(bytes[:])
}

// machineSubnets lists the subnets of the machine's interfaces. The engine does not know all of these interfaces: a
// bridge that an earlier run of the engine left behind, for example, is unknown to it. The engine would then create a
// network that overlaps the bridge, and the bridge's rules would break the traffic in the new network.
func machineSubnets() (subnets []netip.Prefix) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			subnets = append(subnets, p.Masked())
		}
	}
	return subnets
}

// Take reserves a free subnet. Error: resource_exhausted.
func (s *Subnets) Take() (netip.Prefix, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range s.size() {
		p := s.at(s.next)
		s.next = (s.next + 1) % s.size()
		if _, ours := s.ours[p]; !ours && !s.foreign[p] {
			s.ours[p], s.moved[p] = false, true
			return p, nil
		}
	}
	return netip.Prefix{}, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonNoNetwork,
		"all %d subnets of the network pool %s are in use", s.size(), s.pool)
}

// Free returns how many subnets of the pool are not in use.
func (s *Subnets) Free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.size()) - len(s.ours) - len(s.foreign)
}

// MarkForeign records that a network of another owner uses a subnet that was just taken.
func (s *Subnets) MarkForeign(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ours, p)
	s.foreign[p], s.moved[p] = true, true
}

// unmarkForeign frees a subnet whose foreign network or bridge is gone.
func (s *Subnets) unmarkForeign(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.foreign, p)
	s.moved[p] = true
}

// Release returns a subnet to the pool.
func (s *Subnets) Release(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ours, p)
	s.moved[p] = true
}
