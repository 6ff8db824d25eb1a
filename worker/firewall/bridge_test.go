package firewall_test

import (
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/worker/firewall"
)

// TestOnlyBridgesMadeForADeploymentAreItsOrphans has bridges of all kinds in one namespace.
func TestOnlyBridgesMadeForADeploymentAreItsOrphans(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	ours := h.firewall(nil)
	theirs := h.firewall(func(c *firewall.Config) { c.Deployment = "test-other" })
	check(t, ours.Sync(ours.Mark(), nil))
	check(t, theirs.Sync(theirs.Mark(), nil))
	const (
		orphan = iota
		used   // has an interface
		shared // another deployment has rules for it, too
		foreign
		gone // was created and deleted
		known
		odd // not a bridge
	)
	bridge := func(i int) string { return network(i, "internet").Bridge }
	for _, i := range []int{orphan, used, shared, gone, known, odd} {
		if ours.Exists(bridge(i)) {
			t.Errorf("%s exists", bridge(i))
		}
		check(t, ours.Protect(network(i, "internet")))
	}
	for _, i := range []int{shared, foreign} {
		check(t, theirs.Protect(network(i, "internet")))
	}
	for _, i := range []int{orphan, used, shared, foreign, known} {
		h.ip("link", "add", bridge(i), "type", "bridge")
		if !ours.Exists(bridge(i)) {
			t.Errorf("%s does not exist", bridge(i))
		}
	}
	h.ip("link", "add", bridge(odd), "type", "veth", "peer", "name", "port")
	h.ip("link", "set", "port", "master", bridge(used))
	for _, i := range []int{orphan, used, shared, gone, odd} {
		check(t, ours.Forget(bridge(i)))
	}

	again := h.firewall(nil) // a later worker: the record is in the table
	check(t, again.Sync(again.Mark(), []firewall.Network{network(known, "internet")}))
	for who, f := range map[string]*firewall.Firewall{"the firewall that forgot them": ours, "a later firewall": again} {
		found, err := f.Abandoned()
		check(t, err)
		if len(found) != 1 || found[0].Name != bridge(orphan) || found[0].Subnet != network(orphan, "internet").Subnet {
			t.Fatalf("%s finds %+v", who, found)
		}
	}
	record := h.nft("list", "set", "inet", "boxfleet-test-main", "made")
	for i, want := range map[int]bool{orphan: true, used: true, shared: true, known: true, odd: true, gone: false,
		foreign: false} {
		if strings.Contains(record, `"`+bridge(i)+`"`) != want {
			t.Errorf("%s is recorded: %t, want %t", bridge(i), !want, want)
		}
	}

	found, err := again.Abandoned()
	check(t, err)
	listed := found[0]
	refused := func(what string, b firewall.Bridge) {
		t.Helper()
		if removed, err := again.RemoveBridge(b); removed || err != nil {
			t.Errorf("%s: removed %t, %v", what, removed, err)
		}
		if !again.Exists(b.Name) {
			t.Errorf("%s: the bridge is gone", what)
		}
	}
	for what, i := range map[string]int{"in use": used, "shared": shared, "another's": foreign, "known": known,
		"no bridge": odd} {
		refused(what, firewall.Bridge{Name: bridge(i), Index: h.index(bridge(i))})
	}
	h.ip("link", "set", "port", "master", bridge(orphan))
	refused("in use since", listed)
	h.ip("link", "set", "port", "master", bridge(used))
	check(t, theirs.Protect(network(orphan, "internet")))
	refused("shared since", listed)
	check(t, theirs.Forget(bridge(orphan)))
	check(t, again.Protect(network(orphan, "internet")))
	refused("known since", listed)
	check(t, again.Forget(bridge(orphan)))
	h.ip("link", "delete", bridge(orphan))
	h.ip("link", "add", bridge(orphan), "type", "bridge")
	refused("another one of its name", listed)

	found, err = again.Abandoned()
	check(t, err)
	if removed, err := again.RemoveBridge(found[0]); !removed || err != nil {
		t.Errorf("removed %t, %v", removed, err)
	}
	if again.Exists(bridge(orphan)) {
		t.Error("the bridge still exists")
	}
	if found, err := again.Abandoned(); len(found) > 0 || err != nil {
		t.Errorf("still abandoned: %+v, %v", found, err)
	}
}
