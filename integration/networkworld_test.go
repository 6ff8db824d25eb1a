package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// world is the network around a Docker host. It is a network namespace behind a link, with addresses of the internet,
// of private ranges and of cloud metadata services. It answers on all these addresses.
//
//	sandbox ── bridge ── host (namespace of the engine) ── link ── world
type world struct {
	t         *testing.T
	host      string // network namespace of the host
	namespace string
	asked     atomic.Int64 // number of queries that its name server received
	askedFor  sync.Map     // names that these queries asked for
}

// Addresses of the host and of the world.
const (
	hostLAN  = "10.77.0.1"
	neighbor = "10.77.0.2"
	internet = "9.9.9.9"

	deniedPublic  = "8.8.4.4" // a public address that the operator denies
	deniedPrivate = "10.99.0.1"
	named         = "10.99.0.53" // the operator's name server, in a denied range

	hostIPv6     = "fd00:77::1"
	worldIPv6    = "fd00:77::2"
	metadataIPv6 = "fd00:ec2::254"
	insideIPv6   = "fd00:66::" // prefix that the test adds to a sandbox's network
)

// around lists more addresses of the world, all on its loopback interface.
var around = []string{
	internet, deniedPublic, deniedPrivate, named, "10.88.0.1", "172.30.0.1", "192.168.9.9", "100.64.0.9", "198.18.0.1",
	"169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192",
}

func newWorld(t *testing.T, e *engines.Engine) *world {
	t.Helper()
	w := &world{t: t, host: e.Namespace(), namespace: e.Namespace() + "-w"}
	w.run("ip", "netns", "add", w.namespace)
	t.Cleanup(func() { w.run("ip", "netns", "delete", w.namespace) })
	ip := func(namespace string, args ...string) { w.ip("/run/netns/"+namespace, args...) }
	ip(w.host, "link", "add", "up0", "type", "veth", "peer", "name", "up1", "netns", w.namespace)
	ip(w.host, "address", "add", hostLAN+"/24", "dev", "up0")
	ip(w.host, "address", "add", hostIPv6+"/64", "dev", "up0", "nodad")
	ip(w.host, "link", "set", "up0", "up")
	ip(w.host, "route", "add", "default", "via", neighbor)
	ip(w.host, "route", "add", "default", "via", worldIPv6)
	w.setIPv6("/run/netns/"+w.host, "all/forwarding", "1")
	ip(w.namespace, "link", "set", "lo", "up")
	ip(w.namespace, "address", "add", neighbor+"/24", "dev", "up1")
	ip(w.namespace, "address", "add", worldIPv6+"/64", "dev", "up1", "nodad")
	ip(w.namespace, "link", "set", "up1", "up")
	ip(w.namespace, "address", "add", metadataIPv6+"/128", "dev", "lo", "nodad")
	ip(w.namespace, "route", "add", insideIPv6+"/64", "via", hostIPv6)
	for _, a := range around {
		ip(w.namespace, "address", "add", a+"/32", "dev", "lo")
	}
	w.serve(w.host, "")
	w.serve(w.namespace, append([]string{neighbor}, around...)...)
	return w
}

func (w *world) run(name string, args ...string) string {
	w.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out)
}

// in runs f in a network namespace. A socket that f creates stays in that namespace.
func in(t *testing.T, namespace string, f func() error) {
	t.Helper()
	inside(t, "/run/netns/"+namespace, f)
}

// inside runs f in the network namespace that a file represents.
func inside(t *testing.T, path string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		// The thread must not end: the fleet processes that a thread started are killed when the thread ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		file, err := os.Open(path)
		if err != nil {
			done <- err
			return
		}
		defer file.Close()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		defer own.Close()
		if err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err == nil {
			err = f()
			if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
				panic(back)
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// ip runs the ip program in a network namespace.
func (w *world) ip(namespace string, args ...string) {
	w.t.Helper()
	w.run("nsenter", append([]string{"--net=" + namespace, "ip"}, args...)...)
}

// setIPv6 sets a parameter of a network namespace.
func (w *world) setIPv6(namespace, name, value string) {
	w.t.Helper()
	inside(w.t, namespace, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+name, []byte(value), 0)
	})
}

// serve answers on every address of a namespace: by TCP on ports 80 and 53, and as a name server by UDP on the given
// addresses.
func (w *world) serve(namespace string, names ...string) {
	w.t.Helper()
	in(w.t, namespace, func() error {
		for _, port := range []string{":80", ":53"} {
			tcp, err := net.Listen("tcp", port)
			if err != nil {
				return err
			}
			w.t.Cleanup(func() { tcp.Close() })
			go greet(tcp)
		}
		for _, a := range names {
			udp, err := net.ListenPacket("udp", a+":53")
			if err != nil {
				return err
			}
			w.t.Cleanup(func() { udp.Close() })
			go w.names(udp)
		}
		return nil
	})
}

// greet sends a greeting to every client that connects.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "reached\n") // the client notices a failure
		c.Close()
	}
}

// names answers every query with one address.
func (w *world) names(udp net.PacketConn) {
	question := make([]byte, 1500)
	for {
		n, from, err := udp.ReadFrom(question)
		if err != nil {
			return
		}
		end := 12
		for end < n && question[end] != 0 {
			end += int(question[end]) + 1
		}
		if end += 5; end > n {
			continue
		}
		w.asked.Add(1)
		w.askedFor.Store(nameIn(question[12:end]), true)
		answer := slices.Concat(question[:2], []byte{0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}, question[12:end])
		if question[end-3] == 1 { // a query for an IPv4 address
			answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 9, 9, 9, 9)
		} else {
			answer[7] = 0
		}
		_, _ = udp.WriteTo(answer, from) // the client asks again
	}
}

// nameIn returns the name that a question asks for. The caller must check that the question is long enough for a name.
func nameIn(question []byte) string {
	var labels []string
	for at := 0; question[at] != 0; {
		next := at + 1 + int(question[at])
		labels = append(labels, string(question[at+1:next]))
		at = next
	}
	return strings.Join(labels, ".")
}

// probe is an attempt to reach an address from a sandbox.
type probe struct {
	s        *sdk.Sandbox
	address  string
	port     int
	may      bool // the attempt is expected to succeed
	tcp, udp bool // tcp: the attempt by TCP succeeded; udp: the attempt by UDP succeeded
}

// probesAtOnce is how many probes run at a time. A refused probe waits for most of a second.
const probesAtOnce = 12

// reachAll runs all probes and sets their results.
func (f *networkFleet) reachAll(t *testing.T, probes []*probe) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(probesAtOnce)
	for _, p := range probes {
		group.Go(func() (err error) {
			p.tcp, p.udp, err = f.try(p.s, p.address, p.port, p.may)
			return err
		})
	}
	check(t, group.Wait())
}

// reaches does the same as reachAll for one probe.
func (f *networkFleet) reaches(t *testing.T, s *sdk.Sandbox, address string, port int, may bool) (tcp, udp bool) {
	t.Helper()
	p := &probe{s: s, address: address, port: port, may: may}
	f.reachAll(t, []*probe{p})
	return p.tcp, p.udp
}

// try tries to open a TCP connection from a sandbox to an address. For port 80, it also sends a query to the name
// server on the same address by UDP. If the target is permitted, try waits long enough for a slow machine.
func (f *networkFleet) try(s *sdk.Sandbox, address string, port int, may bool) (tcp, udp bool, err error) {
	name, patience := sdk.NewID()+".test", 1 // no other query asks for this name
	if may {
		patience = 10
	}
	script := fmt.Sprintf("nc -w %d %s %d </dev/null 2>/dev/null", patience, address, port)
	if port == 80 {
		script += fmt.Sprintf("; timeout %d nslookup -type=a %s %s >/dev/null 2>&1", patience, name, address)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	result, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", script}})
	if err != nil {
		return false, false, err
	}
	_, udp = f.w.askedFor.Load(name)
	return strings.Contains(string(result.Stdout), "reached"), udp, nil
}

// networkFleet is a host with sandboxes of each mode, and the world around it.
type networkFleet struct {
	*fleet.Fleet
	e *engines.Engine
	w *world
}

func (f *networkFleet) create(id string, change func(*protocol.SandboxSpec)) *sdk.Sandbox {
	f.TB.Helper()
	spec := f.Spec()
	if change != nil {
		change(&spec)
	}
	s, err := f.Client.Create(f.Context(time.Minute), spec, sdk.WithID(id))
	if err != nil {
		f.TB.Fatalf("create %s: %v", id, err)
	}
	return s
}

// addressOf returns the address of a sandbox's container in the sandbox's network.
func (f *networkFleet) addressOf(t *testing.T, id string) string {
	return docker(t, f.e.Host, "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}",
		containerOf(f.Fleet, f.e.Host, id))
}

func gatewayOf(s *sdk.Sandbox) string {
	a, _, _ := strings.Cut(s.Info().Subnet, "/")
	i := strings.LastIndex(a, ".")
	last, _ := strconv.Atoi(a[i+1:])
	return fmt.Sprintf("%s.%d", a[:i], last+1)
}

// reachesByIPv6 tries to open a connection from inside a sandbox by IPv6. A sandbox's network never has IPv6 addresses,
// so reachesByIPv6 adds them.
func (f *networkFleet) reachesByIPv6(t *testing.T, s *sdk.Sandbox, address string) error {
	t.Helper()
	pid := docker(t, f.e.Host, "inspect", "-f", "{{.State.Pid}}", containerOf(f.Fleet, f.e.Host, s.ID()))
	namespace := "/proc/" + pid + "/ns/net"
	subnet, err := netip.ParsePrefix(s.Info().Subnet)
	check(t, err)
	type end struct{ namespace, device, address string }
	ends := []end{{"/run/netns/" + f.w.host, firewall.BridgeName(subnet), insideIPv6 + "1"},
		{namespace, "eth0", insideIPv6 + "2"}}
	for i, e := range ends {
		f.w.setIPv6(e.namespace, e.device+"/disable_ipv6", "0")
		f.w.ip(e.namespace, "address", "replace", e.address+"/64", "dev", e.device, "nodad")
		// The rules also block neighbor discovery. Without neighbors, every connection would fail, so the test would
		// show nothing about other rules. Therefore add the neighbors by hand.
		other, link := ends[1-i], ""
		inside(t, other.namespace, func() error {
			device, err := net.InterfaceByName(other.device)
			if err == nil {
				link = device.HardwareAddr.String()
			}
			return err
		})
		f.w.ip(e.namespace, "neighbor", "replace", other.address, "lladdr", link, "dev", e.device, "nud", "permanent")
	}
	f.w.ip(namespace, "route", "replace", "default", "via", insideIPv6+"1")
	inside(t, namespace, func() error { err = greeted(net.JoinHostPort(address, "80")); return nil })
	return err
}

func serving(s *protocol.SandboxSpec) {
	s.Command = []string{"sh", "-c", "while :; do echo reached | nc -l -p 8080 >/dev/null; done"}
	s.Ports = []protocol.Port{{Container: 8080}}
}

// greeted connects to an address and checks the greeting.
func greeted(address string) error {
	c, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if data, err := io.ReadAll(c); !bytes.Contains(data, []byte("reached")) {
		return fmt.Errorf("%s answered %q, %v", address, data, err)
	}
	return nil
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
