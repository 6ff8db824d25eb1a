package integration

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// rulesOf returns a fleet's rules in the namespace of an engine, or "" if the fleet's table does not exist.
func rulesOf(f *fleet.Fleet, e *engines.Engine) string {
	out, err := exec.Command("ip", "netns", "exec", e.Namespace(), "nft", "list", "table", "inet",
		"boxfleet-"+f.Conn.Deployment()).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// ruled reports whether there are rules for the network of a sandbox.
func ruled(t *testing.T, f *fleet.Fleet, e *engines.Engine, subnet string) bool {
	t.Helper()
	p, err := netip.ParsePrefix(subnet)
	check(t, err)
	return strings.Contains(rulesOf(f, e), "goto "+firewall.BridgeName(p))
}

// TestS22_RulesAreCheckedImmediatelyBeforeAStart removes the rules while a sandbox is created. The worker must notice
// the missing rules before the start: its next inspection of the host would be too late.
func TestS22_RulesAreCheckedImmediatelyBeforeAStart(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "rules")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host, Reconcile: time.Hour, PauseAt: "before-container-create"})
	s, err := f.Client.Create(f.Context(time.Minute), f.Spec(), sdk.WithID("one"), sdk.WithWait(false))
	check(t, err)
	w.AwaitPaused(20 * time.Second)
	out, err := exec.Command("ip", "netns", "exec", e.Namespace(), "nft", "delete", "table", "inet",
		"boxfleet-"+f.Conn.Deployment()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.Continue()
	check(t, s.WaitReady(f.Context(time.Minute)))
	if !ruled(t, f, e, s.Info().Subnet) {
		t.Error("the sandbox started without rules")
	}
	f.Judge()
}

// TestS22_TurningTheFirewallOffLeavesNoSandboxUnprotectedAndNoRule uses a host with a sandbox that needs the firewall
// because of its network mode.
func TestS22_TurningTheFirewallOffLeavesNoSandboxUnprotectedAndNoRule(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "off")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	role := fleet.Role{Engine: e.Host, Reconcile: 500 * time.Millisecond}
	w := f.Worker("w1", role)
	ctx := f.Context(2 * time.Minute)
	create := func(id, mode string) *sdk.Sandbox {
		t.Helper()
		spec := f.Spec()
		spec.Network, spec.Ports = &protocol.Network{Mode: mode}, []protocol.Port{{Container: 8080}}
		s, err := f.Client.Create(ctx, spec, sdk.WithID(id))
		check(t, err)
		return s
	}
	none, revived, open, other := create("none", protocol.NetworkNone), create("revived",
		protocol.NetworkNone), create("open", protocol.NetworkInternet), create("other", protocol.NetworkInternet)
	check(t, none.Stop(ctx))
	w.Stop()
	role.Firewall = protocol.FirewallOff
	f.Worker("w1", role)

	wantError(t, "a resume without protection", none.Resume(ctx), protocol.FailedPrecondition, protocol.ReasonFirewall,
		"")
	if !ruled(t, f, e, revived.Info().Subnet) {
		t.Error("a running sandbox has lost its rules")
	}
	check(t, other.Delete(ctx))
	if ruled(t, f, e, other.Info().Subnet) {
		t.Error("the rules of a deleted sandbox still apply to its subnet")
	}

	t.Run("ports stay the same", func(t *testing.T) {
		late := create("late", protocol.NetworkInternet)
		for _, s := range []*sdk.Sandbox{open, late} {
			given := s.Info().Ports
			for range 3 {
				check(t, s.Stop(ctx))
				check(t, s.Resume(ctx))
				if got := inState(f, s.ID(), protocol.StateReady, 30*time.Second).Ports; !slices.Equal(got, given) {
					t.Errorf("%s: after a resume the ports are %+v, before they were %+v", s.ID(), got, given)
				}
			}
		}
	})

	e.Restart()
	info := inState(f, "revived", protocol.StateFailed, 60*time.Second)
	if info.Reason != protocol.ReasonFirewall {
		t.Errorf("after a restart of the engine a sandbox that cannot be protected is %s, %s", info.State, info.Reason)
	}
	for _, id := range []string{"none", "revived", "open", "late"} {
		s, err := f.Client.Get(ctx, id)
		check(t, err)
		check(t, s.Delete(ctx))
	}
	f.Eventually(10*time.Second, "no rule is left", func() error {
		if rules := rulesOf(f, e); rules != "" {
			return fmt.Errorf("there is\n%s", rules)
		}
		return nil
	})
}
