package protocol

import (
	"net/netip"
	"slices"
)

// neverReached are the ranges that stand for the host itself or its local link, and the addresses of cloud metadata
// services. Such a service gives a machine's credentials to any program on the machine.
var neverReached = prefixes(
	"0.0.0.0/8",          // this network
	"127.0.0.0/8",        // loopback
	"169.254.0.0/16",     // link local, and the metadata of most clouds
	"100.100.100.200/32", // metadata of Alibaba Cloud
	"168.63.129.16/32",   // Azure's host agent
	"192.0.0.192/32",     // metadata of Oracle Cloud's older machines
	"224.0.0.0/4",        // multicast
	"255.255.255.255/32", // broadcast
)

// NeverReached returns the ranges that no sandbox may reach on any host, whatever its spec allows.
func NeverReached() []netip.Prefix { return slices.Clone(neverReached) }

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// privateRanges are the ranges that are not part of the public internet.
var privateRanges = prefixes(
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // RFC 1918
	"100.64.0.0/10",   // carrier-grade NAT
	"192.0.0.0/24",    // protocol assignments
	"192.88.99.0/24",  // 6to4 relays
	"198.18.0.0/15",   // benchmarks
	"192.0.2.0/24",    // documentation
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"240.0.0.0/4",     // reserved
)

// PrivateRanges returns the ranges that are not part of the public internet. A sandbox reaches such a range only if
// both its spec and its host's operator allow the range.
func PrivateRanges() []netip.Prefix { return slices.Clone(privateRanges) }

// IsPrivateRange reports whether a range lies entirely within one private range. A range that includes public
// addresses, such as 0.0.0.0/0, does not lie within a private range. In a policy, such a range means only its public
// addresses.
func IsPrivateRange(p netip.Prefix) bool { return IsWithinAny(p, privateRanges) }

// IsWithinAny reports whether a range lies entirely within one range of a list.
func IsWithinAny(p netip.Prefix, list []netip.Prefix) bool {
	return slices.ContainsFunc(list, func(outer netip.Prefix) bool {
		return outer.Bits() <= p.Bits() && outer.Contains(p.Addr())
	})
}
