package integration

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// world is what lies around a Docker host: a namespace behind a link of it, which has addresses of the
// internet, of private ranges and of cloud metadata, and answers on all of them.
//
//	sandbox ── bridge ── host (namespace of the engine) ── link ── world
type world struct {
	t         *testing.T
	host      string // namespace
	namespace string
	asked     atomic.Int64 // questions that its name server got
}

// Addresses of the host and of the world.
const (
	hostLAN  = "10.77.0.1"
	neighbor = "10.77.0.2"
	internet = "9.9.9.9"

	deniedPublic  = "8.8.4.4" // by the operator
	deniedPrivate = "10.99.0.1"
	named         = "10.99.0.53" // of the name server that the operator names, in a range that is denied

	hostIPv6     = "fd00:77::1"
	worldIPv6    = "fd00:77::2"
	metadataIPv6 = "fd00:ec2::254"
	insideIPv6   = "fd00:66::" // of the network that a sandbox is given by hand
)

// around are the world's addresses beside its own, all on its loopback.
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

// in runs f in a network namespace. Sockets that it makes stay there.
func in(t *testing.T, namespace string, f func() error) {
	t.Helper()
	inside(t, "/run/netns/"+namespace, f)
}

// inside runs f in the network namespace of a file.
func inside(t *testing.T, path string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		// The thread must not end: processes of the fleet die with the thread that started them.
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

// ip runs the program of that name in the network namespace of a file.
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

// serve answers on every address of a namespace: TCP on ports 80 and 53, and a name server on UDP on
// those given.
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

// greet says to everybody who connects that they did.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "reached\n")
		c.Close()
	}
}

// names answers every question about a name with one address.
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
		answer := slices.Concat(question[:2], []byte{0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}, question[12:end])
		if question[end-3] == 1 { // an IPv4 address was asked for
			answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 9, 9, 9, 9)
		} else {
			answer[7] = 0
		}
		_, _ = udp.WriteTo(answer, from)
	}
}

// reaches tries from inside of a sandbox to open a connection by TCP, and, with port 80, has a question
// sent to the name server on the same address, by UDP. What may be reached has time to answer on a slow
// machine.
func (f *networkFleet) reaches(t *testing.T, s *sdk.Sandbox, address string, port int, may bool) (tcp, udp bool) {
	t.Helper()
	before := f.w.asked.Load()
	patience := 1
	if may {
		patience = 10
	}
	script := fmt.Sprintf("nc -w %d %s %d </dev/null 2>/dev/null", patience, address, port)
	if port == 80 {
		script += fmt.Sprintf("; timeout %d nslookup -type=a udp.test %s >/dev/null 2>&1", patience, address)
	}
	result, err := s.Exec(f.Context(40*time.Second), protocol.ExecSpec{Command: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(result.Stdout), "reached"), f.w.asked.Load() > before
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

// addressOf is the address of a sandbox's container in its network.
func (f *networkFleet) addressOf(t *testing.T, id string) string {
	return docker(t, f.e.Host, "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", containerOf(f.Fleet, f.e.Host, id))
}

func gatewayOf(s *sdk.Sandbox) string {
	a, _, _ := strings.Cut(s.Info().Subnet, "/")
	i := strings.LastIndex(a, ".")
	last, _ := strconv.Atoi(a[i+1:])
	return fmt.Sprintf("%s.%d", a[:i], last+1)
}

// reachesByIPv6 gives a sandbox's network IPv6 by hand, which it never has, and tries from inside of it
// to open a connection.
func (f *networkFleet) reachesByIPv6(t *testing.T, s *sdk.Sandbox, address string) error {
	t.Helper()
	pid := docker(t, f.e.Host, "inspect", "-f", "{{.State.Pid}}", containerOf(f.Fleet, f.e.Host, s.ID()))
	namespace := "/proc/" + pid + "/ns/net"
	subnet, err := netip.ParsePrefix(s.Info().Subnet)
	check(t, err)
	type end struct{ namespace, device, address string }
	ends := []end{{"/run/netns/" + f.w.host, firewall.BridgeName(subnet), insideIPv6 + "1"}, {namespace, "eth0", insideIPv6 + "2"}}
	for i, e := range ends {
		f.w.setIPv6(e.namespace, e.device+"/disable_ipv6", "0")
		f.w.ip(e.namespace, "address", "replace", e.address+"/64", "dev", e.device, "nodad")
		// Questions for neighbors do not come through either, which alone would stop everything.
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

// TestS22_NetworksReachWhatTheyMayAndNothingElse sends real packets from sandboxes of each mode.
func TestS22_NetworksReachWhatTheyMayAndNothingElse(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "net")
	engines.LoadImage(t, e, fleet.Image)
	w := newWorld(t, e)
	plain := fleet.Start(t, fleet.Options{Workers: -1})
	plain.Worker("w1", fleet.Role{Engine: e.Host, DNS: []string{internet, named}, Deny: []string{deniedPublic + "/32", "10.99.0.0/16"}, Allow: []string{"10.0.0.0/8", "100.64.0.0/10"}, Reconcile: 500 * time.Millisecond})
	f := &networkFleet{plain, e, w}

	open := f.create("open", nil)
	none := f.create("none", func(s *protocol.SandboxSpec) { s.Network = &protocol.Network{Mode: protocol.NetworkNone} })
	some := f.create("some", func(s *protocol.SandboxSpec) {
		s.Network = &protocol.Network{Mode: protocol.NetworkAllow, Allow: []string{"10.0.0.0/8", "100.64.0.0/10"}}
	})
	all := f.create("all", func(s *protocol.SandboxSpec) {
		s.Network = &protocol.Network{Mode: protocol.NetworkAllow, Allow: []string{"0.0.0.0/0"}}
	})
	web := f.create("web", serving)
	given := web.Info().Ports
	if len(given) != 1 || given[0].Host == 0 || given[0].Container != 8080 || given[0].Protocol != protocol.ProtocolTCP {
		t.Fatalf("the sandbox shows the ports %+v", given)
	}
	// Of somebody else on the host, and published on all of its addresses.
	docker(t, e.Host, "run", "-d", "--name", "other", "-p", "0.0.0.0:9000:8080", "--entrypoint", "sh", fleet.Image, "-c",
		"while :; do echo reached | nc -l -p 8080 >/dev/null; done")

	t.Run("the world is there", func(t *testing.T) {
		in(t, w.host, func() error {
			for _, a := range append([]string{neighbor, hostLAN, hostIPv6, metadataIPv6}, around...) {
				if err := greeted(net.JoinHostPort(a, "80")); err != nil {
					t.Errorf("from the host: %v", err)
				}
			}
			return nil
		})
	})

	t.Run("answers on published ports pass", func(t *testing.T) {
		in(t, w.host, func() error { return greeted(fmt.Sprintf("127.0.0.1:%d", given[0].Host)) })
	})

	type target struct {
		what, address    string
		port             int
		open, some, none bool // who may reach it
	}
	targets := []target{
		{"the internet", internet, 80, true, false, false},
		{"a machine beside the host", neighbor, 80, false, true, false},
		{"an allowed private range", "10.88.0.1", 80, false, true, false},
		{"an allowed range of carrier-grade NAT", "100.64.0.9", 80, false, true, false},
		{"the host's address", hostLAN, 80, false, false, false},
		{"the host's own bridge", "172.17.0.1", 80, false, false, false},
		{"RFC 1918, 172.16/12", "172.30.0.1", 80, false, false, false},
		{"RFC 1918, 192.168/16", "192.168.9.9", 80, false, false, false},
		{"benchmarks", "198.18.0.1", 80, false, false, false},
		{"metadata", "169.254.169.254", 80, false, false, false},
		{"metadata of containers", "169.254.170.2", 80, false, false, false},
		{"metadata in an allowed range", "100.100.100.200", 80, false, false, false},
		{"metadata on a public address", "168.63.129.16", 80, false, false, false},
		{"metadata, old", "192.0.0.192", 80, false, false, false},
		{"a public range that the operator denies", deniedPublic, 80, false, false, false},
		{"a range that the operator denies, in an allowed one", deniedPrivate, 80, false, false, false},
		{"another sandbox", f.addressOf(t, "web"), 8080, false, false, false},
		{"another sandbox's published port", hostLAN, given[0].Host, false, false, false},
		{"another sandbox's published port on the bridge", "172.17.0.1", given[0].Host, false, false, false},
		{"a port that somebody published on all addresses", hostLAN, 9000, false, false, false},
	}
	for _, g := range targets {
		t.Run(g.what, func(t *testing.T) {
			for _, c := range []struct {
				s    *sdk.Sandbox
				want bool
			}{{open, g.open}, {some, g.some}, {none, g.none}} {
				tcp, udp := f.reaches(t, c.s, g.address, g.port, c.want)
				if tcp != c.want || g.port == 80 && udp != c.want {
					t.Errorf("from %s: by TCP %t, by UDP %t, want %t", c.s.ID(), tcp, udp, c.want)
				}
			}
		})
	}
	t.Run("a range of everything is the internet", func(t *testing.T) {
		for address, want := range map[string]bool{internet: true, "10.88.0.1": false, "169.254.169.254": false} {
			if tcp, udp := f.reaches(t, all, address, 80, want); tcp != want || udp != want {
				t.Errorf("%s: by TCP %t, by UDP %t, want %t", address, tcp, udp, want)
			}
		}
	})
	t.Run("a name server that the operator names", func(t *testing.T) {
		for _, s := range []*sdk.Sandbox{open, some, none} {
			want := s == open
			tcp, udp := f.reaches(t, s, named, 80, want)
			asked, _ := f.reaches(t, s, named, 53, want)
			if tcp || udp != want || asked != want {
				t.Errorf("from %s: port 80 by TCP %t; port 53 by UDP %t and by TCP %t, want %t", s.ID(), tcp, udp, asked, want)
			}
		}
	})
	byIPv6 := map[string]string{"the host's IPv6 address": hostIPv6, "IPv6 metadata": metadataIPv6}
	for what, address := range byIPv6 {
		t.Run(what, func(t *testing.T) {
			if err := f.reachesByIPv6(t, open, address); err == nil {
				t.Errorf("%s is reached", address)
			}
		})
	}
	t.Run("its own gateway", func(t *testing.T) {
		for _, s := range []*sdk.Sandbox{open, some, none} {
			if tcp, udp := f.reaches(t, s, gatewayOf(s), 80, false); tcp || udp {
				t.Errorf("%s reaches its gateway: by TCP %t, by UDP %t", s.ID(), tcp, udp)
			}
		}
	})
	t.Run("a refusal is an answer, not a silence", func(t *testing.T) {
		result, err := none.Exec(f.Context(20*time.Second), protocol.ExecSpec{Command: []string{"nc", "-w", "10", neighbor, "81"}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(result.Stderr), "refused") {
			t.Errorf("nc says %q", result.Stderr)
		}
	})

	t.Run("names", func(t *testing.T) {
		lookup := func(s *sdk.Sandbox) string {
			result, err := s.Exec(f.Context(20*time.Second), protocol.ExecSpec{Command: []string{"sh", "-c", "timeout 3 nslookup -type=a secret.example.test; true"}})
			if err != nil {
				t.Fatal(err)
			}
			return string(result.Stdout)
		}
		if out := lookup(open); !strings.Contains(out, "Address: 9.9.9.9") {
			t.Errorf("internet: %s", out)
		}
		before := w.asked.Load()
		for _, s := range []*sdk.Sandbox{some, none} {
			if out := lookup(s); strings.Contains(out, "Address: 9.9.9.9") {
				t.Errorf("%s resolves a public name: %s", s.ID(), out)
			}
		}
		if n := w.asked.Load() - before; n != 0 {
			t.Errorf("%d questions left networks that reach no name server", n)
		}
	})

	table := "boxfleet-" + f.Conn.Deployment()
	rules := func() string {
		out, _ := exec.Command("ip", "netns", "exec", w.host, "nft", "list", "table", "inet", table).CombinedOutput()
		return string(out)
	}
	t.Run("rules that somebody took away are put back", func(t *testing.T) {
		w.run("ip", "netns", "exec", w.host, "nft", "delete", "table", "inet", table)
		if tcp, _ := f.reaches(t, none, hostLAN, 80, false); !tcp {
			t.Log("the rules were back before the sandbox could look")
		}
		f.Eventually(10*time.Second, "the rules are back", func() error {
			if n := strings.Count(rules(), "chain bxf-"); n != 5 {
				return fmt.Errorf("there are %d networks", n)
			}
			return nil
		})
		if tcp, udp := f.reaches(t, none, hostLAN, 80, false); tcp || udp {
			t.Error("the host is reached")
		}
	})

	t.Run("stop, resume and a restart of the engine keep ports and rules", func(t *testing.T) {
		same := func(when string) {
			t.Helper()
			if got := inState(f.Fleet, "web", protocol.StateReady, 30*time.Second).Ports; !slices.Equal(got, given) {
				t.Errorf("%s the ports are %+v, they were %+v", when, got, given)
			}
			f.Eventually(10*time.Second, when+" the port answers", func() (err error) {
				in(t, w.host, func() error { err = greeted(fmt.Sprintf("127.0.0.1:%d", given[0].Host)); return nil })
				return err
			})
		}
		ctx := f.Context(time.Minute)
		check(t, web.Stop(ctx))
		check(t, web.Resume(ctx))
		same("after the resume")
		e.Restart()
		f.Eventually(30*time.Second, "the sandbox runs again", func() error {
			_, err := web.Exec(f.Context(5*time.Second), protocol.ExecSpec{Command: []string{"true"}})
			return err
		})
		same("after the engine's restart")
		for _, a := range []string{hostLAN, neighbor, gatewayOf(open)} {
			if tcp, udp := f.reaches(t, open, a, 80, false); tcp || udp {
				t.Errorf("after the engine's restart %s is reached", a)
			}
		}
	})

	t.Run("a delete leaves no rule", func(t *testing.T) {
		for _, s := range []*sdk.Sandbox{open, none, some, all, web} {
			check(t, s.Delete(f.Context(time.Minute)))
		}
		// The record of bridges may still have their names, until the next look at the host.
		if left := rules(); strings.Contains(left, "chain bxf-") || strings.Contains(left, "goto bxf-") {
			t.Errorf("left:\n%s", left)
		}
		if left := w.run("ip", "-n", w.host, "link"); strings.Contains(left, "bxf-") {
			t.Errorf("left:\n%s", left)
		}
	})

	// The control: what was refused above is there to be reached.
	t.Run("without a firewall", func(t *testing.T) {
		docker(t, e.Host, "start", "other")
		plain := fleet.Start(t, fleet.Options{Workers: -1})
		plain.Worker("w1", fleet.Role{Engine: e.Host, DNS: []string{internet}, Firewall: protocol.FirewallOff})
		bare := &networkFleet{plain, e, w}
		s := bare.create("bare", nil)
		for _, g := range targets {
			if strings.HasPrefix(g.what, "another sandbox") {
				continue // none is left
			}
			if tcp, _ := bare.reaches(t, s, g.address, g.port, true); !tcp {
				t.Errorf("%s (%s) is not reached: the test proves nothing", g.what, g.address)
			}
		}
		for what, address := range byIPv6 {
			if err := bare.reachesByIPv6(t, s, address); err != nil {
				t.Errorf("%s (%s) is not reached: the test proves nothing: %v", what, address, err)
			}
		}
		spec := bare.Spec()
		spec.Network = &protocol.Network{Mode: protocol.NetworkNone}
		_, err := bare.Client.Create(bare.Context(20*time.Second), spec)
		wantError(t, "network none without a firewall", err, protocol.FailedPrecondition, protocol.ReasonFirewall, "spec.network")
	})
}

// greeted connects and reads what the other side says.
func greeted(address string) error {
	c, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if data, err := io.ReadAll(c); !bytes.Contains(data, []byte("reached")) {
		return fmt.Errorf("%s says %q, %v", address, data, err)
	}
	return nil
}

// quietPort is a port of those that workers publish by default, which nobody has. The kernel gives none of them to
// those who ask for any one, as other tests do.
func quietPort(t *testing.T) int {
	t.Helper()
	published, err := protocol.ParsePortRange("", worker.DefaultPorts)
	check(t, err)
	for range 100 {
		port := published.First + rand.IntN(published.Len())
		address := fmt.Sprintf("127.0.0.1:%d", port)
		tcp, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		tcp.Close()
		if udp, err := net.ListenPacket("udp", address); err == nil {
			udp.Close()
			return port
		}
	}
	t.Fatalf("no port of %s is free", published)
	return 0
}

func TestX18_PortsAreAskedForGivenAndRefused(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	busy, free := quietPort(t), quietPort(t)
	taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", busy))
	check(t, err)
	defer taken.Close()

	t.Run("given", func(t *testing.T) {
		spec := f.Spec()
		serving(&spec)
		spec.Ports = []protocol.Port{{Container: 8080, Host: free}, {Container: 8080, Host: free, Protocol: protocol.ProtocolUDP}, {Container: 81}, {Container: 81, Protocol: protocol.ProtocolUDP},
			{Container: 8080}} // also at a port that is chosen
		s, err := f.Client.Create(ctx, spec)
		check(t, err)
		got := s.Info().Ports
		if len(got) != 5 || got[0].Host != free || got[1].Host != free || got[2].Host == 0 || got[3].Host == 0 || got[3].Protocol != protocol.ProtocolUDP || got[4].Host == 0 || got[4].Host == free {
			t.Fatalf("got %+v", got)
		}
		for _, host := range []int{free, got[4].Host} {
			f.Eventually(5*time.Second, "the port answers", func() error { return greeted(fmt.Sprintf("127.0.0.1:%d", host)) })
		}
		listed := docker(t, "unix:///var/run/docker.sock", "port", containerOf(f, "", s.ID()))
		if strings.Count(listed, "-> 127.0.0.1:") != 5 || strings.Contains(listed, "0.0.0.0") {
			t.Errorf("published: %s", listed)
		}
		second := f.Spec()
		second.Ports = []protocol.Port{{Container: 1}, {Container: 2, Host: free}}
		_, err = f.Client.Create(ctx, second, sdk.WithID("second"))
		wantError(t, "a port of another sandbox", err, protocol.ResourceExhausted, protocol.ReasonPortTaken, "spec.ports[1].host")
		check(t, s.Delete(ctx))
	})
	t.Run("taken", func(t *testing.T) {
		spec := f.Spec()
		spec.Ports = []protocol.Port{{Container: 80, Host: busy}}
		_, err := f.Client.Create(ctx, spec, sdk.WithID("taken"))
		wantError(t, "a port that is taken", err, protocol.ResourceExhausted, protocol.ReasonPortTaken, "spec.ports[0].host")
	})
	t.Run("outside of what the operator lets be published", func(t *testing.T) {
		spec := f.Spec()
		spec.Ports = []protocol.Port{{Container: 80}, {Container: 81, Host: 8080}}
		_, err := f.Client.Create(ctx, spec, sdk.WithID("outside"))
		wantError(t, "a port of the host's own", err, protocol.PermissionDenied, protocol.ReasonPolicyDenied, "spec.ports[1].host")
	})
	t.Run("sctp", func(t *testing.T) {
		spec := f.Spec()
		spec.Ports = []protocol.Port{{Container: 80, Host: free, Protocol: protocol.ProtocolSCTP}}
		s, err := f.Client.Create(ctx, spec, sdk.WithID("sctp"))
		if err == nil {
			if got := s.Info().Ports; !slices.Equal(got, spec.Ports) {
				t.Errorf("got %+v", got)
			}
			check(t, s.Delete(ctx))
			return
		}
		t.Logf("this kernel has no SCTP: %v", err)
		wantError(t, "sctp where the kernel has none", err, protocol.FailedPrecondition, protocol.ReasonUnsupported, "spec.ports[0].protocol")
	})
	t.Run("twice", func(t *testing.T) {
		spec := f.Spec()
		spec.Ports = []protocol.Port{{Container: 80, Host: free}, {Container: 81, Host: free}}
		_, err := f.Client.Create(ctx, spec)
		wantError(t, "a port twice", err, protocol.InvalidArgument, "", "spec.ports[1].host")
	})
	f.Eventually(10*time.Second, "failed creates leave nothing", func() error {
		if left := f.Objects(""); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// A sandbox keeps its ports. After a restart of the machine somebody else may have one: it waits for it, says
// so, and fails where it does not get it in the time of a create.
func TestX18_ASandboxWaitsForItsPortToBeFreeAgain(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx, host := f.Context(3*time.Minute), engines.Default(t).Host
	const patience = 20 * time.Second // in which the first create is to succeed
	spec := f.Spec()
	serving(&spec)
	spec.Ports, spec.CreateTimeout = []protocol.Port{{Container: 8080}}, protocol.Duration(patience)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("port"))
	check(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", s.Info().Ports[0].Host)
	ended := func() (taken net.Listener, began time.Time) { // as the machine ends it
		t.Helper()
		w.Kill()
		docker(t, host, "kill", containerOf(f, host, "port"))
		f.Eventually(5*time.Second, "somebody else has the port", func() (err error) {
			taken, err = net.Listen("tcp", address)
			return err
		})
		began = time.Now()
		w = w.Restart()
		return taken, began
	}
	waits := func(n int) {
		t.Helper()
		f.Eventually(patience, "the history says what it waits for", func() error {
			if got := count(history(ctx, t, f.Client, "port"), protocol.SandboxWaiting); got != n {
				return fmt.Errorf("%d times, not %d", got, n)
			}
			return nil
		})
	}
	taken, _ := ended()
	waits(1)
	wantError(t, "what it waits for", find(t, history(ctx, t, f.Client, "port"), protocol.SandboxWaiting).Error,
		protocol.ResourceExhausted, protocol.ReasonPortTaken, "spec.ports[0].host")
	check(t, taken.Close())
	f.Eventually(10*time.Second, "the port answers again", func() error { return greeted(address) })
	f.Eventually(10*time.Second, "it says that it waits no more", func() error { // somewhat later than the port answers
		info, err := f.Client.Get(ctx, "port")
		if err == nil && info.Info().Error != nil {
			err = fmt.Errorf("it waits for %w", info.Info().Error)
		}
		return err
	})

	taken, began := ended()
	defer taken.Close()
	f.Eventually(patience+15*time.Second, "it gives up", func() error {
		info, err := f.Client.Get(ctx, "port")
		if err == nil && info.Info().State != protocol.StateFailed {
			err = fmt.Errorf("it is %s", info.Info().State)
		}
		return err
	})
	if took := time.Since(began); took < patience {
		t.Errorf("it gave up after %s", took)
	}
	wantError(t, "the sandbox", find(t, history(ctx, t, f.Client, "port"), protocol.SandboxFailed).Error,
		protocol.ResourceExhausted, protocol.ReasonPortTaken, "spec.ports[0].host")
	check(t, s.Delete(ctx))
	f.Judge()
}

// TestAWorkerThatCannotProtectRefuses: through a proxy the worker finds a process whose network is not
// the engine's, and its rules would protect nothing.
func TestAWorkerThatCannotProtectRefuses(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "behind")
	engines.LoadImage(t, e, fleet.Image)
	socket := filepath.Join(t.TempDir(), "proxy.sock")
	l, err := net.Listen("unix", socket)
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				engine, err := net.Dial("unix", e.Socket)
				if err != nil {
					return
				}
				defer engine.Close()
				go func() { _, _ = io.Copy(engine, c); _ = engine.(*net.UnixConn).CloseWrite() }()
				_, _ = io.Copy(c, engine)
			}()
		}
	}()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	// Another pool than that of other fleets, whose bridges are where the proxy is.
	f.Worker("w1", fleet.Role{Engine: "unix://" + socket, NetworkPool: "10.231.0.0/16"})
	_, err = f.Client.Create(f.Context(time.Minute), f.Spec(), sdk.WithID("bare"))
	wantError(t, "a sandbox that cannot be protected", err, protocol.FailedPrecondition, protocol.ReasonFirewall, "")
	f.Eventually(10*time.Second, "it leaves nothing", func() error {
		if left := f.Objects(e.Host); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
