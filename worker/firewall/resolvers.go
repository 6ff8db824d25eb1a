package firewall

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// HostNameServers returns the configured name servers of the engine's host that run on the host itself. No sandbox can
// reach such a name server. HostNameServers returns nil if the host cannot be read.
func (h *host) HostNameServers() []netip.Addr {
	own := h.HostAddresses()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.enter() != nil {
		return nil
	}
	return slices.DeleteFunc(h.place.resolvers(), func(a netip.Addr) bool { return !slices.Contains(own, a) })
}

// HostAddresses returns the IPv4 addresses of the engine's host, without loopback addresses. It returns nil if the host
// cannot be read.
func (h *host) HostAddresses() (own []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.enter() != nil {
		return nil
	}
	var addresses []net.Addr
	err := h.place.do(func() (err error) {
		addresses, err = net.InterfaceAddrs()
		return err
	})
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			own = append(own, p.Addr())
		}
	}
	return own
}

// DNS returns the name servers to configure in the containers of a network with this policy. nil leaves the choice to
// the engine, which always resolves the names of containers itself. A network whose policy does not allow the internet
// gets only name servers that its policy allows. The engine would query other name servers from outside of the network,
// and a sandbox could send data to the internet in the queried names.
func (f *Firewall) DNS(p Policy) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	servers := f.cfg.Resolvers
	if len(servers) == 0 && !p.internet() && f.enter() == nil {
		servers = f.place.resolvers()
	}
	var list []string
	for _, a := range servers {
		single := netip.PrefixFrom(a, 32)
		if p.internet() || p.allows(a, f.cfg.Allow) && !protocol.IsWithinAny(single, never) &&
			!protocol.IsWithinAny(single, f.cfg.Deny) {
			list = append(list, a.String())
		}
	}
	if len(list) == 0 && !p.internet() {
		list = []string{deadResolver}
	}
	return list
}

// deadResolver is a name server that never answers. The engine queries name servers from inside the container, where
// this address means the container itself.
const deadResolver = "0.0.0.0"

// resolvers reads the configured name servers of the engine's host, except those on its loopback. The engine queries
// the returned name servers from inside the sandbox's network, so the firewall applies. The engine would query a name
// server on the host's loopback from outside that network.
func (n *namespace) resolvers() []netip.Addr {
	var found []netip.Addr
	for _, name := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		file, err := os.Open(filepath.Join(n.root, name))
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 2 || fields[0] != "nameserver" {
				continue
			}
			a, err := netip.ParseAddr(fields[1])
			if err == nil && a.Is4() && !a.IsLoopback() && !slices.Contains(found, a) {
				found = append(found, a)
			}
		}
		file.Close()
	}
	return found
}
