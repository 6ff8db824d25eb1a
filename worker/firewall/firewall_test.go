package firewall_test

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

func TestFiveHundredNetworksAreProtectedAndForgotten(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := h.firewall(nil)
	check(t, f.Sync(f.Mark(), nil))
	const n = 500
	start := time.Now()
	for i := range n {
		check(t, f.Protect(network(i, "internet")))
	}
	each := time.Since(start) / n
	start = time.Now()
	check(t, f.Sync(f.Mark(), nil))
	t.Logf("protecting a network took %s, and rewriting the rules of %d networks %s", each, n, time.Since(start))
	if rules := h.nft("list", "ruleset"); strings.Count(rules, "chain bxf-") != n {
		t.Errorf("%d networks have chains, want %d", strings.Count(rules, "chain bxf-"), n)
	}
	start = time.Now()
	for i := range n {
		check(t, f.Forget(network(i, "internet").Bridge))
	}
	t.Logf("forgetting a network took %s", time.Since(start)/n)
	// Abandoned also removes from the record the bridges that do not exist.
	if found, err := f.Abandoned(); len(found) > 0 || err != nil {
		t.Errorf("the abandoned bridges are %v, and the error is %v; want none", found, err)
	}
	if rules := h.nft("list", "ruleset"); strings.Contains(rules, "bxf-0") {
		t.Errorf("rules of forgotten networks are left:\n%s", rules)
	}
	check(t, f.Remove())
	check(t, f.Remove())
	if rules := h.nft("list", "ruleset"); rules != "" {
		t.Errorf("rules are left after the table was removed:\n%s", rules)
	}
}

func TestParsingAPolicyAndPrintingItAreInverse(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"internet", "none", "allow 10.0.0.0/8", "allow 10.0.0.0/8,192.168.1.0/24"} {
		p, err := firewall.ParsePolicy(text)
		if err != nil || p.String() != text {
			t.Errorf("parsing %q: got %q and error %v, want the same text", text, p.String(), err)
		}
	}
	for _, text := range []string{"", "all", "internet 10.0.0.0/8", "allow", "allow x", "allow fd00::/8"} {
		if p, err := firewall.ParsePolicy(text); err == nil {
			t.Errorf("parsing %q: got %q, want an error", text, p)
		}
	}
}

func TestRangesThatAreNeverReachableCannotBeAllowed(t *testing.T) {
	t.Parallel()
	f := firewall.New(firewall.Config{Deployment: "x", Deny: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
		Pool: netip.MustParsePrefix("10.201.0.0/16")})
	for text, denied := range map[string]bool{
		"allow 10.0.0.0/8": false, "allow 10.9.1.0/24": true, "allow 1.0.0.0/8,169.254.169.254/32": true,
		"allow 127.0.0.0/8": true, "allow 0.0.0.0/0": false, "allow 100.100.100.200/32": true,
		"allow 10.201.0.0/16": true, "allow 10.201.7.0/24": true, "allow 10.200.0.0/15": false,
	} {
		p, err := firewall.ParsePolicy(text)
		check(t, err)
		if _, got := f.Denied(p); got != denied {
			t.Errorf("policy %q is denied: %t, want %t", text, got, denied)
		}
	}
}

func TestOnlyTheOperatorCanAllowPrivateRanges(t *testing.T) {
	t.Parallel()
	f := firewall.New(firewall.Config{Deployment: "x", Allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	for text, withheld := range map[string]bool{
		"internet": false, "allow 10.1.0.0/16": false, "allow 10.1.2.0/24": false, "allow 10.0.0.0/8": true,
		"allow 8.0.0.0/8,192.168.0.0/16": true,
		"allow 0.0.0.0/0":                false, "allow 172.0.0.0/8": false, "allow 100.64.1.0/24": true,
		"allow 203.0.113.0/24": true,
	} {
		p, err := firewall.ParsePolicy(text)
		check(t, err)
		if _, got := f.Withheld(p); got != withheld {
			t.Errorf("policy %q is withheld: %t, want %t", text, got, withheld)
		}
	}
	h := newHost(t)
	h.firewall(func(c *firewall.Config) { c.Allow = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")} })
	for text, servers := range map[string][]string{
		"allow 10.77.0.0/16": {"0.0.0.0"}, "allow 10.0.0.0/7": {"0.0.0.0"}, "allow 0.0.0.0/0": {hostServer, otherServer},
		"internet": nil,
	} {
		p, err := firewall.ParsePolicy(text)
		check(t, err)
		got := h.firewall(func(c *firewall.Config) {
			if text == "allow 0.0.0.0/0" {
				c.Resolvers = []netip.Addr{netip.MustParseAddr(hostServer), netip.MustParseAddr(otherServer)}
			}
		}).DNS(p)
		if !slices.Equal(got, servers) {
			t.Errorf("policy %q has the name servers %v, want %v", text, got, servers)
		}
	}
}

func TestAHostThatCannotBeProtectedIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for what, engine := range map[string]string{"an engine on another machine": "tcp://192.0.2.1:2375",
		"no engine": "unix:///nowhere"} {
		err := firewall.New(firewall.Config{Deployment: "x", Engine: engine}).Sync(0, nil)
		if protocol.AsError(err).Reason != protocol.ReasonFirewall &&
			protocol.AsError(err).Reason != protocol.ReasonEngineUnavailable {
			t.Errorf("writing rules with %s: got %v, want reason %s or %s", what, err, protocol.ReasonFirewall,
				protocol.ReasonEngineUnavailable)
		}
	}
	f := h.firewall(nil)
	if err := f.Check(network(1, "none")); protocol.AsError(err).Reason != protocol.ReasonFirewall {
		t.Errorf("checking a missing bridge: got %v, want reason %s", err, protocol.ReasonFirewall)
	}
	if rules := h.nft("list", "ruleset"); rules != "" {
		t.Errorf("rules are left in a namespace that is not the engine's:\n%s", rules)
	}
	// Run a worker without the capability that nftables needs.
	cmd := exec.Command("setpriv", "--inh-caps=-net_admin", "--bounding-set=-net_admin", os.Args[0])
	cmd.Env = append(os.Environ(), engineVariable+"="+h.engine)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "failed_precondition (firewall_unavailable)") {
		t.Errorf("writing rules without CAP_NET_ADMIN: got %v and the output %s, want firewall_unavailable", err, out)
	}
}

func TestSyncRestoresMissingRulesAndKeepsOtherDeploymentsRules(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f, other := h.firewall(nil), h.firewall(func(c *firewall.Config) { c.Deployment = "test-other" })
	check(t, f.Protect(network(1, "internet")))
	check(t, f.Protect(network(2, "none")))
	check(t, other.Protect(network(3, "allow 10.9.0.0/16")))
	before := h.nft("list", "ruleset")
	h.nft("flush", "ruleset")
	check(t, f.Sync(f.Mark(), nil))
	check(t, other.Protect(network(3, "allow 10.9.0.0/16")))
	if again := h.nft("list", "ruleset"); len(again) != len(before) {
		t.Errorf("the restored rules are\n%s\nwant\n%s", again, before)
	}
	// Networks that the engine no longer has lose their rules. Networks that were protected after the list was read keep
	// their rules.
	check(t, f.Sync(f.Mark(), []firewall.Network{network(1, "internet")}))
	check(t, f.Protect(network(5, "none")))
	mark := f.Mark()
	check(t, f.Protect(network(4, "none")))
	check(t, f.Forget(network(5, "none").Bridge))
	check(t, f.Sync(mark, []firewall.Network{network(5, "none")}))
	rules := h.nft("list", "ruleset")
	for i, want := range map[int]bool{1: false, 2: true, 3: true, 4: true, 5: false} {
		if got := strings.Contains(rules, "chain "+network(i, "none").Bridge); got != want {
			t.Errorf("network %d has rules: %t, want %t", i, got, want)
		}
	}
	check(t, f.Remove())
	if rules := h.nft("list", "ruleset"); !strings.Contains(rules, network(3, "none").Bridge) {
		t.Errorf("removing the table also removed the other deployment's rules: %s", rules)
	}
}

// The engine's networks may be listed while the engine creates a network. The list then lacks the new network.
func TestAListOlderThanANetworkKeepsTheNetworksRules(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := h.firewall(nil)
	check(t, f.Sync(f.Mark(), nil))
	n := network(1, "none")
	check(t, f.Protect(n))
	mark := f.Mark()
	h.bridge(n)
	check(t, f.Check(n))
	check(t, f.Sync(mark, nil))
	if !h.ruled(n) {
		t.Error("a list older than the network removed the network's rules")
	}
	check(t, f.Sync(f.Mark(), nil))
	if h.ruled(n) {
		t.Error("a removed network still has rules after a sync with a newer list")
	}
}

// While a network is being removed, a sync with a list that still has the network restores its rules. After the
// removal, such a list must not restore them.
func TestARemovedNetworkHasNoRules(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := h.firewall(nil)
	n := network(1, "internet")
	h.bridge(n)
	check(t, f.Protect(n))
	check(t, f.Forget(n.Bridge))
	mark := f.Mark()
	check(t, f.Sync(mark, []firewall.Network{n})) // the engine still has the network
	if !h.ruled(n) {
		t.Fatal("a network that the engine still has lost its rules")
	}
	check(t, f.Gone(n.Bridge))
	if h.ruled(n) {
		t.Error("a removed network still has rules after Gone")
	}
	check(t, f.Sync(mark, []firewall.Network{n}))
	if h.ruled(n) {
		t.Error("an older list restored the rules of a removed network")
	}
	check(t, f.Remove())
}

// A worker that has just started may protect the network of one sandbox before it has listed all networks.
func TestRulesOfUnknownNetworksStayUntilASync(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	before := h.firewall(nil)
	one, other, gone := network(1, "internet"), network(2, "none"), network(3, "none")
	for _, n := range []firewall.Network{one, other} {
		check(t, before.Protect(n))
		h.bridge(n)
	}
	again := h.firewall(nil)
	check(t, again.Protect(one))
	if !h.ruled(other) {
		t.Error("protecting one network removed the rules of another")
	}
	if err := h.firewall(nil).Check(gone); protocol.AsError(err).Reason != protocol.ReasonFirewall {
		t.Errorf("checking a missing bridge: got %v, want reason %s", err, protocol.ReasonFirewall)
	}
	if !h.ruled(one) || !h.ruled(other) {
		t.Error("checking a missing bridge removed the rules of existing bridges")
	}
	check(t, again.Sync(again.Mark(), []firewall.Network{one}))
	if !h.ruled(one) || h.ruled(other) {
		t.Error("after a sync with the complete list, only the listed network should have rules")
	}
}

// Rules may be missing because the whole table, or only the network's chain, was emptied.
func TestRestoreWritesMissingRules(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := h.firewall(nil)
	n := network(1, "none")
	check(t, f.Restore(n)) // the network was not protected before
	before := h.nft("list", "ruleset")
	for what, args := range map[string][]string{
		"nothing": {"list", "ruleset"}, "all": {"flush", "ruleset"},
		"its rules": {"flush", "chain", "inet", "boxfleet-test-main", n.Bridge},
	} {
		h.nft(args...)
		check(t, f.Restore(n))
		if again := h.nft("list", "ruleset"); again != before {
			t.Errorf("after deleting %s, the restored rules are\n%s\nwant\n%s", what, again, before)
		}
	}
	other := network(1, "internet")
	check(t, f.Restore(other))
	if rules := h.nft("list", "chain", "inet", "boxfleet-test-main", n.Bridge); !strings.Contains(rules, "jump internet") {
		t.Errorf("restoring a network with another policy did not write the new policy: %s", rules)
	}
}

func TestTheHostsOwnAddressesAreKnown(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := h.firewall(nil)
	if own := f.HostAddresses(); len(own) > 0 {
		t.Errorf("a host with only a loopback has the addresses %v", own)
	}
	h.ip("link", "add", "up0", "type", "bridge")
	h.ip("address", "add", hostServer+"/24", "dev", "up0")
	address := []netip.Addr{netip.MustParseAddr(hostServer)}
	if own := f.HostAddresses(); !slices.Equal(own, address) {
		t.Errorf("the host's addresses are %v, want %v", own, address)
	}
	if own := f.HostNameServers(); !slices.Equal(own, address) {
		t.Errorf("the name servers on the host are %v, want %v", own, address)
	}
	for text, denied := range map[string]bool{"allow " + hostServer + "/32": true, "allow " + otherServer + "/32": false} {
		p, err := firewall.ParsePolicy(text)
		check(t, err)
		if _, got := f.Denied(p); got != denied {
			t.Errorf("policy %q is denied: %t, want %t", text, got, denied)
		}
	}
}

// BenchmarkRestoreAndCheck measures how long the start of a sandbox waits for its firewall rules if they already exist.
func BenchmarkRestoreAndCheck(b *testing.B) {
	h := newHost(b)
	f := h.firewall(nil)
	for i := range 100 {
		check(b, f.Protect(network(i, "internet")))
	}
	n := network(7, "internet")
	h.bridge(n)
	for b.Loop() {
		check(b, f.Restore(n))
		check(b, f.Check(n))
	}
}
