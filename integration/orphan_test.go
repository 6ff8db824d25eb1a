package integration

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// TestQ10_AnEngineKilledWhileItMakesNetworksLeavesNoBridge kills an engine while it creates networks. It repeats this
// until a kill leaves a bridge behind, as nearly every kill does.
func TestQ10_AnEngineKilledWhileItMakesNetworksLeavesNoBridge(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "killed")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Engine: e.Host, Reconcile: 500 * time.Millisecond})
	ctx := f.Context(5 * time.Minute)
	bridges := func() int {
		t.Helper()
		links, err := exec.Command("ip", "-n", e.Namespace(), "-o", "link", "show", "type", "bridge").Output()
		check(t, err)
		return strings.Count(string(links), firewall.BridgePrefix)
	}
	orphans := func() []string {
		t.Helper()
		bridges, err := exec.Command("ip", "-n", e.Namespace(), "-o", "link", "show", "type", "bridge").Output()
		check(t, err)
		ids := strings.Fields(docker(t, e.Host, "network", "ls", "--quiet"))
		known := docker(t, e.Host, append([]string{"network", "inspect"}, ids...)...)
		var found []string
		for _, bridge := range regexp.MustCompile(`bxf-[0-9a-f]{8}`).FindAllString(string(bridges), -1) {
			if !strings.Contains(known, `"`+bridge+`"`) {
				found = append(found, bridge)
			}
		}
		return found
	}
	var left []string
	for round := 0; round < 10 && len(left) == 0; round++ {
		before := bridges()
		for i := range 4 {
			_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID(fmt.Sprintf("s%d-%d", round, i)), sdk.WithWait(false))
			check(t, err)
		}
		f.Eventually(30*time.Second, "the engine creates networks", func() error {
			if n := bridges(); n == before {
				return fmt.Errorf("there are %d bridges", n)
			}
			return nil
		})
		e.Kill()
		e.Restart()
		left = orphans()
	}
	if len(left) == 0 {
		t.Fatal("the engine left no bridge in ten kills: the test proves nothing")
	}
	t.Logf("the killed engine left %q", left)
	f.Eventually(20*time.Second, "the bridges are gone", func() error {
		if left := orphans(); len(left) > 0 {
			return fmt.Errorf("%q are left", left)
		}
		return nil
	})
	s := f.Create("after")
	mustExec(ctx, t, s, script("true"))
	f.Judge()
}

// TestQ10_ABridgeWithoutANetworkIsRemoved uses an engine that has a bridge without a network. An engine leaves such a
// bridge if it is killed after creating the bridge and before saving the network.
func TestQ10_ABridgeWithoutANetworkIsRemoved(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "orphans")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ip := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("ip", append([]string{"-n", e.Namespace()}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	there := func(bridge string) bool {
		return strings.Contains(ip("-o", "link", "show", "type", "bridge"), bridge+":")
	}
	ctx := f.Context(time.Minute)
	role := fleet.Role{Engine: e.Host, CrashAt: "after-network-create", NetworkPool: "10.231.0.0/24"}
	w := f.Worker("w1", role)
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("one"), sdk.WithWait(false))
	check(t, err)
	w.AwaitKilled(20 * time.Second)
	orphan := firewall.BridgeName(netip.MustParsePrefix("10.231.0.0/28")) // the first subnet of the pool
	e.Kill()
	check(t, os.Remove(filepath.Join(filepath.Dir(e.Socket), "data/network/files/local-kv.db")))
	e.Restart()
	if !there(orphan) {
		t.Fatalf("there is no bridge %s: %s", orphan, ip("-br", "link"))
	}
	// This bridge has a name of the same kind and a subnet of the same pool, but belongs to another deployment.
	foreign := firewall.BridgeName(netip.MustParsePrefix("10.231.0.240/28"))
	ip("link", "add", foreign, "type", "bridge")

	role.CrashAt, role.Reconcile, role.ReapDryRun = "", 200*time.Millisecond, true
	w = f.Worker("w1", role)
	check(t, s.WaitReady(ctx))
	if got := s.Info().Subnet; got == "10.231.0.0/28" || got == "" {
		t.Errorf("the sandbox has the subnet %q, whose bridge existed before", got)
	}
	f.Eventually(10*time.Second, "a dry run reports it", func() error {
		if strings.Count(w.Log(), `msg="dry run: would remove an orphan bridge"`) < 2 {
			return errors.New("it is not reported yet")
		}
		return nil
	})
	if !there(orphan) {
		t.Fatal("a dry run removed it")
	}
	w.Stop()

	role.Reconcile, role.ReapDryRun = time.Second, false
	began := time.Now()
	w = f.Worker("w1", role)
	f.Eventually(15*time.Second, "the orphan is gone", func() error {
		if there(orphan) {
			return errors.New("it still exists")
		}
		return nil
	})
	if age := time.Since(began); age < 4*time.Second {
		t.Errorf("it was removed %s after it was first seen", age)
	}
	mustExec(ctx, t, s, script("true"))
	second := f.Create("two") // the new sandbox may get the freed subnet
	mustExec(ctx, t, second, script("true"))
	if strings.Count(w.Log(), "an orphan bridge") != 1 || !there(foreign) {
		t.Errorf("more than the orphan was removed: %s", ip("-br", "link"))
	}
	f.Judge()
}
