package worker

import (
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

func TestNameServersOnTheHostItselfAreRefused(t *testing.T) {
	engine := thisMachine(t)
	own := machineAddresses(t)
	for what, c := range map[string]struct {
		server, firewall string
		refused          bool
	}{
		"the host's":                     {own[0].String(), "", true},
		"the host's, without a firewall": {own[0].String(), protocol.FirewallOff, false},
		"the loopback's":                 {"127.0.0.1", protocol.FirewallOff, true},
		"another's":                      {"192.0.2.53", "", false},
	} {
		cfg := &Config{DNS: []string{c.server}, Firewall: c.firewall, Logger: slog.New(slog.DiscardHandler)}
		i, err := newIsolation(cfg, "test", engine, netip.MustParsePrefix(DefaultNetworkPool))
		if (err != nil) != c.refused || err != nil && protocol.AsError(err).Field != "dns" {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			i.wall.Close()
		}
	}
}

// thisMachine is the address of an engine that is this process: its host is this machine.
func thisMachine(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return "unix://" + socket
}

// machineAddresses are the IPv4 addresses of this machine that are not of its loopback.
func machineAddresses(t *testing.T) (list []netip.Addr) {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if p := netip.MustParsePrefix(a.String()); p.Addr().Is4() && !p.Addr().IsLoopback() {
			list = append(list, p.Addr())
		}
	}
	if len(list) == 0 {
		t.Fatal("this machine has no address but its loopback")
	}
	return list
}

func TestRangesAndPortsOfTheOperatorAreChecked(t *testing.T) {
	for field, c := range map[string]Config{
		"allow_networks": {AllowNetworks: []string{"10.0.0.0/8", "0.0.0.0/0"}}, "deny_networks": {DenyNetworks: []string{"x"}},
	} {
		if _, err := newIsolation(&c, "test", "unix:///nowhere", netip.MustParsePrefix(DefaultNetworkPool)); err == nil || protocol.AsError(err).Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, text := range []string{"", "0", "x", "1-", "2-1", "1-65536", "-5", "1-2-3"} {
		if r, err := protocol.ParsePortRange("ports", text); err == nil || protocol.AsError(err).Field != "ports" {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
}

// TestPortsAreChosenOfTheOperatorsRange looks for free ones until none is left.
func TestPortsAreChosenOfTheOperatorsRange(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // whoever has a port has it also in the range
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	s := &sandbox{w: &worker{ports: protocol.PortRange{First: port, Last: port}, isolation: &isolation{wall: firewall.New(firewall.Config{Deployment: "test", Engine: thisMachine(t)})}}}
	defer s.w.isolation.wall.Close()
	given, err := s.choosePorts([]protocol.Port{{Container: 80, Protocol: protocol.ProtocolUDP}})
	if err != nil || given[0].Host != port {
		t.Errorf("got %v, %v, want %d", given, err, port)
	}
	_, err = s.choosePorts([]protocol.Port{{Container: 81, Host: 1, Protocol: protocol.ProtocolTCP}, {Container: 80, Protocol: protocol.ProtocolTCP}})
	if e := protocol.AsError(err); err == nil || e.Code != protocol.ResourceExhausted || e.Field != "spec.ports[1].host" {
		t.Errorf("a port that somebody has: %v", err)
	}
}
