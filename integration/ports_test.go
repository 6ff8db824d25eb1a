package integration

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker"
)

// quietPort returns a free port in the default range for published ports. Other tests ask the kernel for any free port,
// and the kernel never returns a port of this range to them.
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
		spec.Ports = []protocol.Port{{Container: 8080, Host: free},
			{Container: 8080, Host: free, Protocol: protocol.ProtocolUDP}, {Container: 81}, {Container: 81,
				Protocol: protocol.ProtocolUDP},
			{Container: 8080}} // a sandbox may publish one container port twice
		s, err := f.Client.Create(ctx, spec)
		check(t, err)
		got := s.Info().Ports
		if len(got) != 5 || got[0].Host != free || got[1].Host != free || got[2].Host == 0 || got[3].Host == 0 ||
			got[3].Protocol != protocol.ProtocolUDP || got[4].Host == 0 || got[4].Host == free {
			t.Fatalf("got %+v", got)
		}
		for _, host := range []int{free, got[4].Host} {
			f.Eventually(5*time.Second, "the port answers",
				func() error { return greeted(fmt.Sprintf("127.0.0.1:%d", host)) })
		}
		listed := docker(t, engines.Default(t).Host, "port", containerOf(f, "", s.ID()))
		if strings.Count(listed, "-> 127.0.0.1:") != 5 || strings.Contains(listed, "0.0.0.0") {
			t.Errorf("published: %s", listed)
		}
		second := f.Spec()
		second.Ports = []protocol.Port{{Container: 1}, {Container: 2, Host: free}}
		_, err = f.Client.Create(ctx, second, sdk.WithID("second"))
		wantError(t, "a port of another sandbox", err, protocol.ResourceExhausted, protocol.ReasonPortTaken,
			"spec.ports[1].host")
		check(t, s.Delete(ctx))
	})
	t.Run("taken", func(t *testing.T) {
		spec := f.Spec()
		spec.Ports = []protocol.Port{{Container: 80, Host: busy}}
		_, err := f.Client.Create(ctx, spec, sdk.WithID("taken"))
		wantError(t, "a taken port", err, protocol.ResourceExhausted, protocol.ReasonPortTaken,
			"spec.ports[0].host")
	})
	t.Run("outside the operator's range for published ports", func(t *testing.T) {
		spec := f.Spec()
		spec.Ports = []protocol.Port{{Container: 80}, {Container: 81, Host: 8080}}
		_, err := f.Client.Create(ctx, spec, sdk.WithID("outside"))
		wantError(t, "a port outside the range", err, protocol.PermissionDenied, protocol.ReasonPolicyDenied,
			"spec.ports[1].host")
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
		wantError(t, "sctp where the kernel has none", err, protocol.FailedPrecondition, protocol.ReasonUnsupported,
			"spec.ports[0].protocol")
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

// A sandbox keeps its ports. After a restart of the machine, another program may have taken one of these ports. The
// sandbox then waits for the port and reports this. It fails if the port is not free within the time limit of a create.
func TestX18_ASandboxWaitsForItsPortToBeFreeAgain(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx, host := f.Context(3*time.Minute), engines.Default(t).Host
	const patience = 20 * time.Second // time limit of a create; the first create must succeed within it
	spec := f.Spec()
	serving(&spec)
	spec.Ports, spec.CreateTimeout = []protocol.Port{{Container: 8080}}, protocol.Duration(patience)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("port"))
	check(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", s.Info().Ports[0].Host)
	ended := func() (taken net.Listener, began time.Time) { // has the same effect as a shutdown of the machine
		t.Helper()
		w.Kill()
		docker(t, host, "kill", containerOf(f, host, "port"))
		f.Eventually(5*time.Second, "another program has the port", func() (err error) {
			taken, err = net.Listen("tcp", address)
			return err
		})
		began = time.Now()
		w = w.Restart()
		return taken, began
	}
	waits := func(n int) {
		t.Helper()
		f.Eventually(patience, "the history names what the sandbox waits for", func() error {
			if got := count(history(ctx, t, f.Client, "port"), protocol.SandboxWaiting); got != n {
				return fmt.Errorf("%d times, not %d", got, n)
			}
			return nil
		})
	}
	taken, _ := ended()
	waits(1)
	wantError(t, "the reason for waiting", find(t, history(ctx, t, f.Client, "port"), protocol.SandboxWaiting).Error,
		protocol.ResourceExhausted, protocol.ReasonPortTaken, "spec.ports[0].host")
	check(t, taken.Close())
	f.Eventually(10*time.Second, "the port answers again", func() error { return greeted(address) })
	// A little after the port answers, the sandbox stops reporting that it waits.
	f.Eventually(10*time.Second, "the sandbox no longer waits", func() error {
		info, err := f.Client.Get(ctx, "port")
		if err == nil && info.Info().Error != nil {
			err = fmt.Errorf("it waits for %w", info.Info().Error)
		}
		return err
	})

	taken, began := ended()
	defer taken.Close()
	f.Eventually(patience+15*time.Second, "the sandbox fails", func() error {
		info, err := f.Client.Get(ctx, "port")
		if err == nil && info.Info().State != protocol.StateFailed {
			err = fmt.Errorf("it is %s", info.Info().State)
		}
		return err
	})
	if took := time.Since(began); took < patience {
		t.Errorf("the sandbox failed after %s", took)
	}
	wantError(t, "the sandbox", find(t, history(ctx, t, f.Client, "port"), protocol.SandboxFailed).Error,
		protocol.ResourceExhausted, protocol.ReasonPortTaken, "spec.ports[0].host")
	check(t, s.Delete(ctx))
	f.Judge()
}
