package firewall_test

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/worker/firewall"
)

// in calls f while its thread is in a network namespace. Connections that f opens remain in that namespace.
func in(t *testing.T, namespace string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		defer own.Close()
		there, err := os.Open("/run/netns/" + namespace)
		if err != nil {
			done <- err
			return
		}
		defer there.Close()
		if err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err == nil {
			err = f()
			if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
		}
		done <- err
	}()
	check(t, <-done)
}

// beside creates a namespace, and a link between the host and the namespace. The parameter link is the name of the
// link's end on the host.
func (h *host) beside(t *testing.T, name, link, address, gateway string) string {
	t.Helper()
	namespace := h.namespace + "-" + name
	run(t, "ip", "netns", "add", namespace)
	t.Cleanup(func() { run(t, "ip", "netns", "delete", namespace) })
	h.ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
	h.ip("link", "set", link, "up")
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", address, "dev", "eth0"},
		{"link", "set", "eth0", "up"}, {"route", "add", "default", "via", gateway}} {
		run(t, "ip", append([]string{"-n", namespace}, args...)...)
	}
	return namespace
}

// sandbox creates the bridge of a network, and a namespace attached to the bridge.
func (h *host) sandbox(t *testing.T, n firewall.Network) string {
	t.Helper()
	h.bridge(n)
	h.ip("link", "set", n.Bridge, "up")
	gateway := n.Subnet.Addr().Next()
	link := "v" + n.Bridge[len(firewall.BridgePrefix):]
	namespace := h.beside(t, link, link, netip.PrefixFrom(gateway.Next(), n.Subnet.Bits()).String(), gateway.String())
	h.ip("link", "set", link, "master", n.Bridge)
	return namespace
}

// One network opens more connections than it may have. The connections of another network are counted separately.
func TestConnectionsOfANetworkAreLimited(t *testing.T) {
	t.Parallel()
	const most, internet = 20, "9.9.9.9"
	h := newHost(t)
	world := h.beside(t, "world", "up0", "10.66.0.2/24", "10.66.0.1")
	h.ip("address", "add", "10.66.0.1/24", "dev", "up0")
	h.ip("route", "add", internet+"/32", "via", "10.66.0.2")
	run(t, "ip", "-n", world, "address", "add", internet+"/32", "dev", "lo")
	in(t, h.namespace, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	in(t, world, func() error {
		l, err := net.Listen("tcp", internet+":80")
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err // the kernel accepts connections, even if the listener does not
	})
	f := h.firewall(func(c *firewall.Config) { c.MostConns = most })
	greedy, modest := network(1, "internet"), network(2, "internet")
	check(t, f.Protect(greedy))
	check(t, f.Protect(modest))
	if !f.LimitsConnections() {
		t.Fatal("this kernel cannot count connections: load the module nft_connlimit")
	}
	dial := func(namespace string, n int) (open int, last error) {
		t.Helper()
		in(t, namespace, func() error {
			dialer := net.Dialer{Timeout: 5 * time.Second}
			for range n {
				c, err := dialer.Dial("tcp", internet+":80")
				if err != nil {
					last = err
					continue
				}
				open++
				t.Cleanup(func() { c.Close() })
			}
			return nil
		})
		return open, last
	}
	one, other := h.sandbox(t, greedy), h.sandbox(t, modest)
	open, err := dial(one, most+10)
	if open != most || err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the network could open %d connections, want %d; the last error is %v", open, most, err)
	}
	if open, err := dial(other, 3); open != 3 {
		t.Errorf("the other network could open %d of 3 connections; the last error is %v", open, err)
	}
	// Rewriting the rules does not reset the counts.
	check(t, f.Sync(f.Mark(), []firewall.Network{greedy, modest}))
	if open, _ := dial(one, 3); open != 0 {
		t.Errorf("after the rules were rewritten, the network could open %d more connections:\n%s", open,
			h.nft("list", "table", "inet", "boxfleet-test-main"))
	}
	check(t, f.Forget(greedy.Bridge))
	check(t, f.Remove())
}
