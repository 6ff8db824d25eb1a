package worker

import (
	"context"
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

const subnetBits = firewall.SubnetBits

// subnets gives each sandbox a subnet of the worker's own pool, since Docker's default pools end
// after about thirty networks.
type subnets struct {
	mu     sync.Mutex
	pool   netip.Prefix
	ours   map[netip.Prefix]bool // given out; true: the engine had a network of it
	others map[netip.Prefix]bool // what somebody else had when the host was last looked at; none of ours
	moved  map[netip.Prefix]bool // went from hand to hand since a look began, which does not know it
	next   uint32                // where the search goes on: a subnet that was given back rests first
}

// poolRanges are where a pool may be. The loopback, link-local and multicast addresses lead nowhere in a network
// of the engine, and of public ones the sandboxes would not reach who really has them.
var poolRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("198.18.0.0/15"),
}

func poolNames() string { return strings.Join(texts(poolRanges), ", ") }

func newSubnets(pool string) (*subnets, error) {
	p, err := netip.ParsePrefix(pool)
	if err != nil || !p.Addr().Is4() || p.Bits() > subnetBits {
		return nil, protocol.Invalid("network_pool", "must be an IPv4 prefix of /%d or more addresses, got %.40q", subnetBits, pool)
	}
	if !protocol.RangeWithin(p, poolRanges) {
		return nil, protocol.Invalid("network_pool", "must lie in a private range (%s), got %.40q", poolNames(), pool)
	}
	return &subnets{pool: p.Masked(), ours: map[netip.Prefix]bool{}, others: map[netip.Prefix]bool{}, moved: map[netip.Prefix]bool{}}, nil
}

// size is how many subnets the pool has.
func (s *subnets) size() uint32 { return 1 << (subnetBits - s.pool.Bits()) }

func (s *subnets) at(i uint32) netip.Prefix {
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], number(s.pool.Addr())+i<<(32-subnetBits))
	return netip.PrefixFrom(netip.AddrFrom4(addr), subnetBits)
}

// use marks the subnet of a network of ours that the engine has.
func (s *subnets) use(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.within(p) {
		s.ours[q], s.moved[q] = true, true
		delete(s.others, q)
	}
}

// begin is to be called before the host is looked at for [subnets.look].
func (s *subnets) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.moved)
}

// look takes what somebody on the host has: networks of the engine, ours among them, and interfaces of
// the machine. It gives back what nobody has any more.
func (s *subnets) look(found []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[netip.Prefix]bool{}
	for _, p := range found {
		for _, q := range s.within(p) {
			there[q] = true
		}
	}
	maps.DeleteFunc(s.ours, func(p netip.Prefix, had bool) bool { return had && !there[p] && !s.moved[p] })
	maps.DeleteFunc(s.others, func(p netip.Prefix, _ bool) bool { return !s.moved[p] })
	for p := range there {
		if _, ours := s.ours[p]; !ours && !s.moved[p] {
			s.others[p] = true
		}
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
	first, n := uint32(0), s.size()
	if p.Bits() > s.pool.Bits() {
		first, n = number(p.Masked().Addr())-number(s.pool.Addr()), 1<<(subnetBits-p.Bits())
		first >>= 32 - subnetBits
	}
	found := make([]netip.Prefix, 0, n)
	for i := first; i < first+n; i++ {
		found = append(found, s.at(i))
	}
	return found
}

// number is an IPv4 address as a number.
func number(a netip.Addr) uint32 {
	bytes := a.As4()
	return binary.BigEndian.Uint32(bytes[:])
}

// lookAtSubnets sees which subnets of the pool are free.
func (w *worker) lookAtSubnets(ctx context.Context) error {
	w.subnets.begin()
	used, err := w.engine.UsedSubnets(ctx)
	if err == nil {
		w.subnets.look(slices.Concat(used, machineSubnets(), w.isolation.wall.Subnets()))
	}
	return err
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
		if _, ours := s.ours[p]; !ours && !s.others[p] {
			s.ours[p], s.moved[p] = false, true
			return p, nil
		}
	}
	return netip.Prefix{}, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonNoNetwork, "all %d subnets of %s are taken", s.size(), s.pool)
}

// free is how many subnets of the pool nobody has.
func (s *subnets) free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.size()) - len(s.ours) - len(s.others)
}

// passOver notes that somebody else has a subnet that was just taken.
func (s *subnets) passOver(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ours, p)
	s.others[p], s.moved[p] = true, true
}

// regain gives out again what somebody else had, who is gone.
func (s *subnets) regain(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.others, p)
	s.moved[p] = true
}

// give takes a subnet back.
func (s *subnets) give(p netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ours, p)
	s.moved[p] = true
}
