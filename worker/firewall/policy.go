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
	Allow []netip.Prefix // the allowed ranges, if Mode is NetworkAllow
}

// PolicyOf returns the policy of a spec's network. nil means the default policy.
func PolicyOf(n *protocol.Network) (Policy, error) {
	if n == nil || n.Mode == "" {
		return Policy{Mode: protocol.NetworkInternet}, nil
	}
	return ParsePolicy(strings.TrimSpace(n.Mode + " " + strings.Join(n.Allow, ",")))
}

// String returns the policy as text for a label, such as "internet", "none" or "allow 10.0.0.0/8,192.168.1.0/24".
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

// ParsePolicy parses the text of [Policy.String]. Any other text is an error, never a more permissive policy.
func ParsePolicy(text string) (Policy, error) {
	mode, ranges, _ := strings.Cut(text, " ")
	p := Policy{Mode: mode}
	switch {
	case mode == protocol.NetworkInternet && ranges == "", mode == protocol.NetworkNone && ranges == "":
		return p, nil
	case mode != protocol.NetworkAllow:
		return p, protocol.Invalid("spec.network", "is not a network policy: %.80q", text)
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

// everything is the range of all addresses. A policy that allows this range means the same as mode internet.
var everything = netip.MustParsePrefix("0.0.0.0/0")

// internet reports whether a policy allows the whole internet. Such a policy also allows the host's name servers.
func (p Policy) internet() bool {
	return p.Mode == protocol.NetworkInternet || slices.Contains(p.Allow, everything)
}

// allows reports whether the policy's ranges allow an address. A private address is allowed only by a range that is
// completely private and that the operator allows. A range with public and private addresses allows only its public
// addresses.
func (p Policy) allows(a netip.Addr, operator []netip.Prefix) bool {
	single := netip.PrefixFrom(a, a.BitLen())
	return slices.ContainsFunc(p.Allow, func(r netip.Prefix) bool {
		return r.Contains(a) && (!protocol.IsPrivateRange(single) || protocol.IsPrivateRange(r) &&
			protocol.IsWithinAny(r, operator))
	})
}

// Withheld returns the index of the first private range in a policy that is within no range of [Config].Allow.
func (f *Firewall) Withheld(p Policy) (index int, is bool) {
	i := slices.IndexFunc(p.Allow, func(r netip.Prefix) bool {
		return protocol.IsPrivateRange(r) &&
			!protocol.IsWithinAny(r, f.cfg.Allow)
	})
	return i, i >= 0
}

// Denied returns the index of the first range in a policy that no sandbox may reach: the host's own addresses, the
// network pool of the sandboxes, the ranges that are never reachable, and the ranges that the operator denies. A range
// counts if it lies completely within one of these.
func (f *Firewall) Denied(p Policy) (index int, is bool) {
	denied := slices.Concat(never, f.cfg.Deny)
	if f.cfg.Pool.IsValid() {
		denied = append(denied, f.cfg.Pool)
	}
	for _, a := range f.HostAddresses() {
		denied = append(denied, netip.PrefixFrom(a, a.BitLen()))
	}
	for i, r := range p.Allow {
		if protocol.IsWithinAny(r, denied) {
			return i, true
		}
	}
	return 0, false
}
