package worker

import (
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestNameServersOnTheHostItselfAreRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s") // this process is the engine: its host is this machine
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
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
		i, err := newIsolation(cfg, "test", "unix://"+socket, netip.MustParsePrefix(DefaultNetworkPool))
		if (err != nil) != c.refused || err != nil && protocol.AsError(err).Field != "dns" {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			i.wall.Close()
		}
	}
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
