package main

import (
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestAHostIsCordonedDrainedAndForgotten(t *testing.T) {
	clean(t)
	server := startWithoutHosts(t, 0)
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server, Name: "w1"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h := &protocol.Host{Worker: "w1", HostID: "h1", Instance: "i1", Token: 1, Healthy: true,
		Slots: 1, Memory: 1 << 30, Cores: 2, LeaseTTL: protocol.Duration(time.Second),
		Labels:   map[string]string{"zone": "a"},
		Firewall: protocol.FirewallNFTables, ServiceProfiles: []string{protocol.ProfileStandard}, SeenAt: time.Now()}
	if err := conn.RegisterHost(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	listed := func(want string) func() bool {
		return func() bool {
			_, stdout, _ := call(t.Context(), "", "host", "list")
			return strings.Contains(stdout, want)
		}
	}
	refused := func(want string, args ...string) {
		t.Helper()
		if code, _, stderr := call(t.Context(), "y\n", append([]string{"host"}, args...)...); code == 0 ||
			!strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d: %s", args, code, stderr)
		}
	}
	eventually.Holds(t, patience, "the host is listed", listed("zone=a"))
	if code, _, stderr := call(t.Context(), "", "sandbox", "create", "--image", "i", "--cpu", "1000"); code == 0 ||
		!strings.Contains(stderr, "spec.cpu: 1000 wanted, and the largest host has 2") {
		t.Errorf("a create with more cores than any host has: exit code %d, %s", code, stderr)
	}
	for _, verb := range []string{"cordon", "uncordon", "drain", "forget"} {
		refused("not_found: host: the fleet has no worker typo; it has w1", verb, "typo")
	}
	refused("only a lost host can be forgotten", "forget", "w1", "--yes")
	refused("must not be negative", "drain", "w1", "--deadline", "-1s")
	expect(t, "host cordon w1", 0, "w1 cordoned")
	expect(t, "host cordon w1 -o json", 0, `{"worker":"w1","result":"cordoned"}`)
	eventually.Holds(t, patience, "the host is cordoned", listed(",cordoned"))
	expect(t, "sandbox create --image i --id a --wait=false", 0, "a")
	eventually.Holds(t, patience, "explain names the cordon", func() bool {
		_, stdout, _ := call(t.Context(), "", "sandbox", "explain", "a")
		return strings.Contains(stdout, "w1: the host is cordoned")
	})
	expect(t, "host drain w1 --wait=false", 0, "w1 draining")
	expect(t, "host drain w1 --deadline 10m", 0, "w1 drained")
	eventually.Holds(t, patience, "the host is drained", listed(",draining"))
	expect(t, "host uncordon w1", 0, "w1 uncordoned")
	eventually.Holds(t, patience, "the waiting sandbox is placed", func() bool {
		_, stdout, _ := call(t.Context(), "", "sandbox", "get", "a")
		return strings.Contains(stdout, "w1")
	})
	if err := conn.ForgetHost(t.Context(), "w1"); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, patience, "the host is lost", listed("lost"))
	expect(t, "sandbox delete a --wait=false", 0, "a")
	refused("use --yes", "forget", "w1")
	code, stdout, stderr := call(t.Context(), "", "host", "forget", "w1", "--yes")
	if code != 0 || !strings.Contains(stdout, "w1 forgotten") ||
		!strings.Contains(stderr, "on it are sandboxes: 1 deleting, with 0 active execs") {
		t.Errorf("forget: exit code %d: %s%s", code, stdout, stderr)
	}
	eventually.Holds(t, patience, "the sandbox is deleted", func() bool {
		_, stdout, _ := call(t.Context(), "", "sandbox", "get", "a")
		return strings.Contains(stdout, "deleted")
	})
	refused("the fleet has no worker w1; it has none", "forget", "w1", "--yes")
}
