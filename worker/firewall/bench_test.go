package firewall_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// listenVariable makes the test binary act as the process of an engine. Until it is killed, the process listens on the
// socket that the variable names.
const listenVariable = "BOXFLEET_TEST_LISTEN"

// engineVariable makes the test binary act as a worker. It writes rules for the engine at the address in the variable,
// and prints the result.
const engineVariable = "BOXFLEET_TEST_ENGINE"

func TestMain(m *testing.M) {
	if engine := os.Getenv(engineVariable); engine != "" {
		fmt.Println(firewall.New(firewall.Config{Deployment: "test-right", Engine: engine}).Sync(0, nil))
		return
	}
	path := os.Getenv(listenVariable)
	if path == "" {
		goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed()))
		return
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		c.Close()
	}
}

// The name servers in the resolv.conf of the host. Some tests make hostServer an address of the host itself.
const hostServer, otherServer = "10.77.0.1", "10.77.0.2"

// host is a network namespace that represents a Docker host. A process in the namespace listens on a socket, like an
// engine.
type host struct {
	t         testing.TB
	namespace string
	engine    string
}

func newHost(t testing.TB) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test creates network namespaces: run it as root")
	}
	dir := t.TempDir()
	h := &host{t: t, namespace: fmt.Sprintf("boxfleet-firewall-%d-%d", os.Getpid(), time.Now().UnixNano()%1e9),
		engine: "unix://" + filepath.Join(dir, "s")}
	run(t, "ip", "netns", "add", h.namespace)
	t.Cleanup(func() { run(t, "ip", "netns", "delete", h.namespace) })
	h.ip("link", "set", "lo", "up")
	servers := filepath.Join(dir, "resolv.conf")
	check(t, os.WriteFile(servers, fmt.Appendf(nil,
		"nameserver %s\nnameserver 127.0.0.53\nnameserver %s\n", hostServer, otherServer), 0o644))
	listener := exec.Command("unshare", "--mount", "sh", "-c",
		`mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec nsenter --net="$1" "$2"`,
		servers, "/run/netns/"+h.namespace, os.Args[0])
	listener.Env = append(os.Environ(), listenVariable+"="+filepath.Join(dir, "s"))
	if err := listener.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		check(t, listener.Process.Kill())
		_ = listener.Wait() // reports only that the process was killed
	})
	eventually.Holds(t, 10*time.Second, "the engine's process listens on its socket", func() bool {
		c, err := net.Dial("unix", filepath.Join(dir, "s"))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return h
}

func (h *host) ip(args ...string) string {
	return run(h.t, "ip", append([]string{"-n", h.namespace}, args...)...)
}

// index returns the number of an interface.
func (h *host) index(name string) (index int) {
	h.t.Helper()
	number, _, _ := strings.Cut(h.ip("-o", "link", "show", name), ":")
	index, err := strconv.Atoi(number)
	check(h.t, err)
	return index
}

func (h *host) nft(args ...string) string {
	return run(h.t, "ip", append([]string{"netns", "exec", h.namespace, "nft"}, args...)...)
}

// bridge creates the bridge of a network, and gives the bridge the gateway's address.
func (h *host) bridge(n firewall.Network) {
	h.ip("link", "add", n.Bridge, "type", "bridge")
	h.ip("address", "add", netip.PrefixFrom(n.Subnet.Addr().Next(), n.Subnet.Bits()).String(), "dev", n.Bridge)
}

// ruled reports whether the network has a chain, and packets from its bridge go to that chain.
func (h *host) ruled(n firewall.Network) bool {
	rules := h.nft("list", "ruleset")
	return strings.Contains(rules, "chain "+n.Bridge+" ") && strings.Contains(rules, ": goto "+n.Bridge)
}

func (h *host) firewall(change func(*firewall.Config)) *firewall.Firewall {
	cfg := firewall.Config{Deployment: "test-main", Engine: h.engine}
	if change != nil {
		change(&cfg)
	}
	f := firewall.New(cfg)
	h.t.Cleanup(f.Close)
	return f
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func network(i int, policy string) firewall.Network {
	p, err := firewall.ParsePolicy(policy)
	if err != nil {
		panic(err)
	}
	subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, byte(i / 16), byte(i % 16 * 16)}), 28)
	return firewall.Network{Bridge: firewall.BridgeName(subnet), Subnet: subnet, Policy: p}
}
