package imageref

import (
	"net/netip"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// notPublic has the ranges of addresses that are not on the public internet.
var notPublic = append(protocol.NeverReached(), prefixes(
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // RFC 1918
	"100.64.0.0/10",   // carrier-grade NAT
	"192.0.0.0/24",    // protocol assignments
	"192.0.2.0/24",    // documentation
	"192.88.99.0/24",  // 6to4 relays
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"240.0.0.0/4",     // reserved
	"2001::/23",       // protocol assignments, Teredo among them
	"2001:db8::/32",   // documentation
	"2002::/16",       // 6to4, which carries any IPv4 address
	"3fff::/20",       // documentation
)...)

// global is the range of public IPv6 addresses.
var global = netip.MustParsePrefix("2000::/3")

// IsPublic reports whether an address is on the public internet. Addresses of the host, of private networks and of
// cloud metadata services are not public.
func IsPublic(a netip.Addr) bool {
	a = a.Unmap()
	if a.Zone() != "" || a.Is6() && !global.Contains(a) {
		return false
	}
	return a.IsValid() && !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(a) })
}

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}
