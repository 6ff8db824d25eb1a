package firewall

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// Policy says what a sandbox may connect to.
type Policy struct {
	Mode  string         // protocol.NetworkInternet, NetworkNone or NetworkAllow
	Allow []netip.Prefix // of NetworkAllow
}

// PolicyOf reads the policy of a spec; nil is the default.
func PolicyOf(n *protocol.Network) (Policy, error) {
	if n == nil || n.Mode == "" {
		return Policy{Mode: protocol.NetworkInternet}, nil
	}
	return ParsePolicy(strings.TrimSpace(n.Mode + " " + strings.Join(n.Allow, ",")))
}

// String says the policy in one word or two, for a label: "internet", "none", "allow 10.0.0.0/8,…".
func (p Policy) String() string {
	if p.Mode != protocol.NetworkAllow {
		return p.Mode
	}
	texts := make([]string, len(p.Allow))
	for i, r := range p.Allow {
		texts[i] = r.String()
	}
	return p.Mode + " " + strings.Join(texts, ",")
}

// ParsePolicy reads what [Policy.String] wrote. What it does not understand is an error, never a policy
// that lets through more.
func ParsePolicy(text string) (Policy, error) {
	mode, ranges, _ := strings.Cut(text, " ")
	p := Policy{Mode: mode}
	switch {
	case mode == protocol.NetworkInternet && ranges == "", mode == protocol.NetworkNone && ranges == "":
		return p, nil
	case mode != protocol.NetworkAllow:
		return p, protocol.Invalid("spec.network", "is not a policy: %.80q", text)
	}
	for _, r := range strings.Split(ranges, ",") {
		prefix, err := netip.ParsePrefix(r)
		if err != nil || !prefix.Addr().Is4() {
			return p, protocol.Invalid("spec.network.allow", "is not an IPv4 range: %.80q", r)
		}
		p.Allow = append(p.Allow, prefix.Masked())
	}
	return p, nil
}

// everything is a range that means the same as mode internet.
var everything = netip.MustParsePrefix("0.0.0.0/0")

// internet says whether a policy lets a sandbox reach the whole internet, and ask the host's name servers.
func (p Policy) internet() bool {
	return p.Mode == protocol.NetworkInternet || slices.Contains(p.Allow, everything)
}

// allows says whether the policy's ranges have an address, of the private ones only those that the operator
// allows, too: a range that has public addresses as well means these alone.
func (p Policy) allows(a netip.Addr, operator []netip.Prefix) bool {
	single := netip.PrefixFrom(a, a.BitLen())
	return slices.ContainsFunc(p.Allow, func(r netip.Prefix) bool {
		return r.Contains(a) && (!protocol.PrivateRange(single) || protocol.PrivateRange(r) && protocol.RangeWithin(r, operator))
	})
}
