package firewall

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// OwnResolvers returns the configured name servers of the engine's host that run on the host itself, where no sandbox
// reaches them. It returns nil if the host cannot be read.
func (f *Firewall) OwnResolvers() []netip.Addr {
	own := f.Own()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.enter() != nil {
		return nil
	}
	return slices.DeleteFunc(f.place.resolvers(), func(a netip.Addr) bool { return !slices.Contains(own, a) })
}

// Own returns the IPv4 addresses of the engine's host outside of the loopback. It returns nil if the host cannot be
// read.
func (f *Firewall) Own() (own []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.enter() != nil {
		return nil
	}
	var addresses []net.Addr
	err := f.place.do(func() (err error) {
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

// resolvers reads the name servers of the engine's host. The engine queries them for sandboxes from inside of their
// networks. It leaves out name servers on the loopback, which the engine queries from outside.
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
