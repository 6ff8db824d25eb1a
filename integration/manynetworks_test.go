package integration

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/engines"
	dockerengine "github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// TestQ11_ManyNetworksOnOneHost creates many networks with their rules, as a worker does, and removes them. Nothing may
// be left afterwards. It creates 24 networks, or the number in BOXFLEET_NETWORKS; `make networks` sets this number to
// 500.
func TestQ11_ManyNetworksOnOneHost(t *testing.T) {
	n := 24
	if text := os.Getenv("BOXFLEET_NETWORKS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	e := engines.Start(t, "many")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	engine, err := dockerengine.Connect(ctx,
		dockerengine.Config{Host: e.Host, Deployment: "test-networks", Fence: dockerengine.Unfenced})
	check(t, err)
	defer engine.Close()
	wall := firewall.New(firewall.Config{Deployment: "test-networks", Engine: e.Host})
	defer wall.Close()
	check(t, wall.Sync(wall.Mark(), nil))

	all := func(what string, do func(n firewall.Network) error) {
		t.Helper()
		group, began := errgroup.Group{}, time.Now()
		group.SetLimit(8)
		for i := range n {
			subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, byte(i / 16), byte(i % 16 * 16)}), 28)
			group.Go(func() error {
				return do(firewall.Network{Bridge: firewall.BridgeName(subnet), Subnet: subnet,
					Policy: firewall.Policy{Mode: "internet"}})
			})
		}
		check(t, group.Wait())
		t.Logf("%s %d networks: %s, %s each", what, n, time.Since(began).Round(time.Millisecond),
			(time.Since(began) / time.Duration(n)).Round(time.Millisecond))
	}
	all("making", func(n firewall.Network) error {
		if err := wall.Protect(n); err != nil {
			return err
		}
		if err := engine.CreateNetwork(ctx,
			dockerengine.NetworkSpec{Name: n.Bridge, Subnet: n.Subnet, Bridge: n.Bridge}); err != nil {
			return err
		}
		return wall.Check(n)
	})
	networks, err := engine.Networks(ctx)
	check(t, err)
	if len(networks) != n {
		t.Errorf("there are %d networks", len(networks))
	}
	all("removing", func(n firewall.Network) error {
		if err := engine.RemoveNetwork(ctx, n.Bridge); err != nil {
			return err
		}
		return wall.Forget(n.Bridge)
	})
	networks, err = engine.Networks(ctx)
	check(t, err)
	if len(networks) != 0 {
		t.Errorf("%d networks are left", len(networks))
	}
	if abandoned, err := wall.Abandoned(); len(abandoned) > 0 || err != nil {
		t.Errorf("bridges are left: %v, %v", abandoned, err)
	}
	for what, args := range map[string][]string{"bridges": {"ip", "link"}, "rules": {"nft", "list", "ruleset"}} {
		out, err := exec.Command("ip", append([]string{"netns", "exec", e.Namespace()}, args...)...).CombinedOutput()
		check(t, err)
		if n := strings.Count(string(out), firewall.BridgePrefix+"0"); n > 0 {
			t.Errorf("%s are left, with %d names of bridges:\n%.2000s", what, n, out)
		}
	}
}
