package network

import (
	"net/netip"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// settings are the operator's network settings. They never change.
type settings struct {
	required bool // false: the operator turned the firewall off; existing rules are removed with their networks
	deny     []netip.Prefix
	allow    []netip.Prefix
	dns      []netip.Addr
}

const firewallRequired = "required"

// parseSettings checks the texts of the configuration. Error: invalid_argument.
func parseSettings(cfg Config) (*settings, error) {
	s := &settings{required: cfg.Firewall != protocol.FirewallOff}
	var err error
	if s.deny, err = parseRanges("deny_networks", cfg.DenyNetworks); err != nil {
		return nil, err
	}
	if s.allow, err = parseRanges("allow_networks", cfg.AllowNetworks); err != nil {
		return nil, err
	}
	for _, r := range s.allow {
		if !protocol.IsPrivateRange(r) {
			return nil, protocol.Invalid("allow_networks",
				"must have only private ranges, got %s; specs may always allow public ranges", r)
		}
	}
	for _, text := range cfg.DNS {
		a, err := netip.ParseAddr(text)
		if err != nil || !a.Is4() || a.IsLoopback() {
			return nil, protocol.Invalid("dns", "must be IPv4 addresses outside of the loopback, got %.60q", text)
		}
		s.dns = append(s.dns, a)
	}
	if s.required && cfg.Firewall != "" && cfg.Firewall != firewallRequired {
		return nil, protocol.Invalid("firewall", "must be %q or %q, got %.40q", firewallRequired, protocol.FirewallOff,
			cfg.Firewall)
	}
	return s, nil
}

// parseRanges parses IPv4 ranges of the configuration.
func parseRanges(field string, texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || !p.Addr().Is4() {
			return nil, protocol.Invalid(field, "must be IPv4 ranges such as 10.0.0.0/8, got %.60q", text)
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

func rangeTexts(ranges []netip.Prefix) (texts []string) {
	for _, r := range ranges {
		texts = append(texts, r.String())
	}
	return texts
}

// Denied returns the ranges that no sandbox reaches, for the table of hosts.
func (s *settings) Denied() []string { return rangeTexts(s.deny) }

// Allowed returns the private ranges that specs may allow, for the table of hosts.
func (s *settings) Allowed() []string { return rangeTexts(s.allow) }

// enforceable refuses a policy other than internet on a host whose firewall is off.
func (s *settings) enforceable(spec *protocol.SandboxSpec) (firewall.Policy, error) {
	policy, err := firewall.PolicyOf(spec.Network)
	if err != nil || s.required || policy.Mode == protocol.NetworkInternet {
		return policy, err
	}
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonFirewall,
		"the host's operator turned the firewall off, so the host cannot restrict what a sandbox reaches")
	e.Field = "spec.network"
	return policy, e
}
