package integration

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestS22_NetworksReachOnlyPermittedAddresses sends real packets from sandboxes of each network mode.
func TestS22_NetworksReachOnlyPermittedAddresses(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "net")
	engines.LoadImage(t, e, fleet.Image)
	w := newWorld(t, e)
	plain := fleet.Start(t, fleet.Options{Workers: -1})
	plain.Worker("w1", fleet.Role{Engine: e.Host, DNS: []string{internet, named},
		Deny: []string{deniedPublic + "/32", "10.99.0.0/16"}, Allow: []string{"10.0.0.0/8",
			"100.64.0.0/10"}, Reconcile: 500 * time.Millisecond})
	f := &networkFleet{plain, e, w}

	open := f.create("open", nil)
	none := f.create("none",
		func(s *protocol.SandboxSpec) { s.Network = &protocol.Network{Mode: protocol.NetworkNone} })
	some := f.create("some", func(s *protocol.SandboxSpec) {
		s.Network = &protocol.Network{Mode: protocol.NetworkAllow, Allow: []string{"10.0.0.0/8", "100.64.0.0/10"}}
	})
	all := f.create("all", func(s *protocol.SandboxSpec) {
		s.Network = &protocol.Network{Mode: protocol.NetworkAllow, Allow: []string{"0.0.0.0/0"}}
	})
	web := f.create("web", serving)
	given := web.Info().Ports
	if len(given) != 1 || given[0].Host == 0 || given[0].Container != 8080 ||
		given[0].Protocol != protocol.ProtocolTCP {
		t.Fatalf("the sandbox shows the ports %+v", given)
	}
	// This container belongs to another user of the host. It is published on all addresses of the host.
	docker(t, e.Host, "run", "-d", "--name", "other", "-p", "0.0.0.0:9000:8080", "--entrypoint", "sh", fleet.Image,
		"-c",
		"while :; do echo reached | nc -l -p 8080 >/dev/null; done")

	t.Run("the world is reachable", func(t *testing.T) {
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
		open, some, none bool // which sandboxes may reach the address
	}
	targets := []target{
		{"the internet", internet, 80, true, false, false},
		{"a machine in the host's network", neighbor, 80, false, true, false},
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
		{"another sandbox's published port on the LAN", hostLAN, given[0].Host, false, false, false},
		{"another sandbox's published port on the bridge", "172.17.0.1", given[0].Host, false, false, false},
		{"a foreign port published on all addresses", hostLAN, 9000, false, false, false},
	}
	var probes []*probe
	from := map[string][]*probe{}
	for _, g := range targets {
		from[g.what] = []*probe{{s: open, address: g.address, port: g.port, may: g.open},
			{s: some, address: g.address, port: g.port, may: g.some},
			{s: none, address: g.address, port: g.port, may: g.none}}
		probes = append(probes, from[g.what]...)
	}
	f.reachAll(t, probes)
	for _, g := range targets {
		t.Run(g.what, func(t *testing.T) {
			for _, p := range from[g.what] {
				if p.tcp != p.may || g.port == 80 && p.udp != p.may {
					t.Errorf("from %s: by TCP %t, by UDP %t, want %t", p.s.ID(), p.tcp, p.udp, p.may)
				}
			}
		})
	}
	t.Run("a range that covers everything allows only the internet", func(t *testing.T) {
		probes := []*probe{{s: all, address: internet, port: 80, may: true}, {s: all, address: "10.88.0.1", port: 80},
			{s: all, address: "169.254.169.254", port: 80}}
		f.reachAll(t, probes)
		for _, p := range probes {
			if p.tcp != p.may || p.udp != p.may {
				t.Errorf("%s: by TCP %t, by UDP %t, want %t", p.address, p.tcp, p.udp, p.may)
			}
		}
	})
	t.Run("a name server configured by the operator", func(t *testing.T) {
		for _, s := range []*sdk.Sandbox{open, some, none} {
			want := s == open
			tcp, udp := f.reaches(t, s, named, 80, want)
			asked, _ := f.reaches(t, s, named, 53, want)
			if tcp || udp != want || asked != want {
				t.Errorf("from %s: port 80 by TCP %t; port 53 by UDP %t and by TCP %t, want %t", s.ID(), tcp, udp,
					asked, want)
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
		var probes []*probe
		for _, s := range []*sdk.Sandbox{open, some, none} {
			probes = append(probes, &probe{s: s, address: gatewayOf(s), port: 80})
		}
		f.reachAll(t, probes)
		for _, p := range probes {
			if p.tcp || p.udp {
				t.Errorf("%s reaches its gateway: by TCP %t, by UDP %t", p.s.ID(), p.tcp, p.udp)
			}
		}
	})
	t.Run("a denied connection is refused, not dropped", func(t *testing.T) {
		result, err := none.Exec(f.Context(20*time.Second),
			protocol.ExecSpec{Command: []string{"nc", "-w", "10", neighbor, "81"}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(result.Stderr), "refused") {
			t.Errorf("nc printed %q", result.Stderr)
		}
	})

	t.Run("names", func(t *testing.T) {
		ctx := f.Context(40 * time.Second)
		lookup := func(s *sdk.Sandbox) string {
			result, err := s.Exec(ctx, script("timeout 3 nslookup -type=a secret.example.test; true"))
			if err != nil {
				t.Error(err)
				return ""
			}
			return string(result.Stdout)
		}
		if out := lookup(open); !strings.Contains(out, "Address: 9.9.9.9") {
			t.Errorf("internet: %s", out)
		}
		before := w.asked.Load()
		var lookups sync.WaitGroup
		for _, s := range []*sdk.Sandbox{some, none} {
			lookups.Go(func() {
				if out := lookup(s); strings.Contains(out, "Address: 9.9.9.9") {
					t.Errorf("%s resolves a public name: %s", s.ID(), out)
				}
			})
		}
		lookups.Wait()
		if n := w.asked.Load() - before; n != 0 {
			t.Errorf("%d queries reached the name server from networks that must not reach it", n)
		}
	})

	table := "boxfleet-" + f.Conn.Deployment()
	rules := func() string {
		out, _ := exec.Command("ip", "netns", "exec", w.host, "nft", "list", "table", "inet", table).CombinedOutput()
		return string(out)
	}
	t.Run("removed rules are restored", func(t *testing.T) {
		w.run("ip", "netns", "exec", w.host, "nft", "delete", "table", "inet", table)
		if tcp, _ := f.reaches(t, none, hostLAN, 80, false); !tcp {
			t.Log("the rules were restored before the sandbox could check")
		}
		f.Eventually(10*time.Second, "the rules are restored", func() error {
			if n := strings.Count(rules(), "chain bxf-"); n != 5 {
				return fmt.Errorf("there are %d networks", n)
			}
			return nil
		})
		if tcp, udp := f.reaches(t, none, hostLAN, 80, false); tcp || udp {
			t.Error("a sandbox reaches its host")
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
		var probes []*probe
		for _, a := range []string{hostLAN, neighbor, gatewayOf(open)} {
			probes = append(probes, &probe{s: open, address: a, port: 80})
		}
		f.reachAll(t, probes)
		for _, p := range probes {
			if p.tcp || p.udp {
				t.Errorf("after the engine's restart %s is reached", p.address)
			}
		}
	})

	t.Run("a delete leaves no rule", func(t *testing.T) {
		for _, s := range []*sdk.Sandbox{open, none, some, all, web} {
			check(t, s.Delete(f.Context(time.Minute)))
		}
		// The table keeps the names of removed bridges until the worker next inspects its host.
		if left := rules(); strings.Contains(left, "chain bxf-") || strings.Contains(left, "goto bxf-") {
			t.Errorf("after the deletes this is left:\n%s", left)
		}
		if left := w.run("ip", "-n", w.host, "link"); strings.Contains(left, "bxf-") {
			t.Errorf("after the deletes this is left:\n%s", left)
		}
	})

	// For comparison, sandboxes without a firewall reach the addresses that were refused above.
	t.Run("without a firewall", func(t *testing.T) {
		docker(t, e.Host, "start", "other")
		plain := fleet.Start(t, fleet.Options{Workers: -1})
		plain.Worker("w1", fleet.Role{Engine: e.Host, DNS: []string{internet}, Firewall: protocol.FirewallOff})
		bare := &networkFleet{plain, e, w}
		s := bare.create("bare", nil)
		var probes []*probe
		for _, g := range targets {
			if !strings.HasPrefix(g.what, "another sandbox") { // the other sandboxes are deleted
				probes = append(probes, &probe{s: s, address: g.address, port: g.port, may: true})
			}
		}
		bare.reachAll(t, probes)
		for _, p := range probes {
			if !p.tcp {
				t.Errorf("%s is not reached: the test proves nothing", p.address)
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
		wantError(t, "network none without a firewall", err, protocol.FailedPrecondition, protocol.ReasonFirewall,
			"spec.network")
	})
}

// TestAWorkerThatCannotProtectRefuses connects the worker to the engine through a proxy. The proxy's process is not in
// the engine's network namespace: rules in the namespace of the proxy would protect nothing.
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
				// The ends of the connection notice a copy that fails.
				go func() { _, _ = io.Copy(engine, c); _ = engine.(*net.UnixConn).CloseWrite() }()
				_, _ = io.Copy(c, engine)
			}()
		}
	}()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	// The pool must differ from the pools of other fleets: their bridges are in the namespace of the proxy.
	f.Worker("w1", fleet.Role{Engine: "unix://" + socket, NetworkPool: "10.231.0.0/16"})
	_, err = f.Client.Create(f.Context(time.Minute), f.Spec(), sdk.WithID("bare"))
	wantError(t, "a create that cannot be protected", err, protocol.FailedPrecondition, protocol.ReasonFirewall, "")
	f.Eventually(10*time.Second, "the refused create leaves nothing", func() error {
		if left := f.Objects(e.Host); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}
