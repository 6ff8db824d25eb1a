package firewall

import (
	"bufio"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// resolvers reads the name servers of the engine's host, which the engine asks on behalf of sandboxes,
// from inside of their networks. Those on the loopback are not among them: the engine asks these from
// outside.
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
