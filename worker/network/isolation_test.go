package network

import (
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func testConfig(t *testing.T, engine string) Config {
	return Config{Deployment: "test", EngineAddress: engine, Subnets: newPool(t, "10.201.0.0/16"),
		Logger: slog.New(slog.DiscardHandler)}
}

func TestNameServersOnTheHostItselfAreRefused(t *testing.T) {
	engine := thisMachine(t)
	own := machineAddresses(t)
	for what, c := range map[string]struct {
		server, firewall string
		refused          bool
	}{
		"on the host":                       {own[0].String(), "", true},
		"on the host, without the firewall": {own[0].String(), protocol.FirewallOff, false},
		"on the loopback":                   {"127.0.0.1", protocol.FirewallOff, true},
		"on another machine":                {"192.0.2.53", "", false},
	} {
		cfg := testConfig(t, engine)
		cfg.DNS, cfg.Firewall = []string{c.server}, c.firewall
		i, err := New(cfg)
		if (err != nil) != c.refused || err != nil && protocol.AsError(err).Field != "dns" {
			t.Errorf("name server %s: got %v, want an error for dns: %t", what, err, c.refused)
		}
		if err == nil {
			i.Close()
		}
	}
}

// thisMachine listens on a socket and returns its address. An engine with this address has this machine as its host.
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

// machineAddresses returns the IPv4 addresses of this machine outside of the loopback.
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
		t.Fatal("this machine has no address outside of the loopback")
	}
	return list
}

func TestInvalidRangesAndPortsInTheConfigurationAreRefused(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"allow_networks": func(c *Config) { c.AllowNetworks = []string{"10.0.0.0/8", "0.0.0.0/0"} },
		"deny_networks":  func(c *Config) { c.DenyNetworks = []string{"x"} },
	} {
		cfg := testConfig(t, "unix:///nowhere")
		change(&cfg)
		if _, err := New(cfg); err == nil || protocol.AsError(err).Field != field {
			t.Errorf("invalid %s: got %v, want an error for this field", field, err)
		}
	}
	for _, text := range []string{"", "0", "x", "1-", "2-1", "1-65536", "-5", "1-2-3"} {
		if r, err := protocol.ParsePortRange("ports", text); err == nil || protocol.AsError(err).Field != "ports" {
			t.Errorf("port range %q: got %v and error %v, want an error for ports", text, r, err)
		}
	}
}

// The operator's range has one port, which is taken for TCP and free for UDP.
func TestPortsAreChosenFromTheOperatorsRange(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	cfg := testConfig(t, thisMachine(t))
	i, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	allowed := protocol.PortRange{First: port, Last: port}
	given, err := i.ChoosePorts(allowed, []protocol.Port{{Container: 80, Protocol: protocol.ProtocolUDP}}, cfg.Logger)
	if err != nil || given[0].Host != port {
		t.Errorf("choosing a UDP port: got %v and error %v, want port %d", given, err, port)
	}
	_, err = i.ChoosePorts(allowed, []protocol.Port{{Container: 81, Host: 1, Protocol: protocol.ProtocolTCP},
		{Container: 80, Protocol: protocol.ProtocolTCP}}, cfg.Logger)
	if e := protocol.AsError(err); err == nil || e.Code != protocol.ResourceExhausted || e.Field != "spec.ports[1].host" {
		t.Errorf("choosing a TCP port: got %v, want resource_exhausted for spec.ports[1].host", err)
	}
}
