package firewall_test

import (
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/worker/firewall"
)

// The bridges of a bridgeBench, by what distinguishes them.
const (
	orphan = iota
	used   // has an interface
	shared // another deployment has rules for it, too
	foreign
	gone // was created and deleted
	known
	odd // not a bridge
)

func bridgeOf(i int) string { return network(i, "internet").Bridge }

// bridgeBench has bridges of all kinds in one namespace.
type bridgeBench struct {
	*host
	ours, again *firewall.Firewall // again is a later worker's, which knows the bridges by the record in the table
	theirs      *firewall.Firewall // of another deployment
}

func newBridgeBench(t *testing.T) bridgeBench {
	t.Helper()
	h := newHost(t)
	ours := h.firewall(nil)
	theirs := h.firewall(func(c *firewall.Config) { c.Deployment = "test-other" })
	check(t, ours.Sync(ours.Mark(), nil))
	check(t, theirs.Sync(theirs.Mark(), nil))
	for _, i := range []int{orphan, used, shared, gone, known, odd} {
		if ours.Exists(bridgeOf(i)) {
			t.Errorf("%s exists", bridgeOf(i))
		}
		check(t, ours.Protect(network(i, "internet")))
	}
	for _, i := range []int{shared, foreign} {
		check(t, theirs.Protect(network(i, "internet")))
	}
	for _, i := range []int{orphan, used, shared, foreign, known} {
		h.ip("link", "add", bridgeOf(i), "type", "bridge")
		if !ours.Exists(bridgeOf(i)) {
			t.Errorf("%s does not exist", bridgeOf(i))
		}
	}
	h.ip("link", "add", bridgeOf(odd), "type", "veth", "peer", "name", "port")
	h.ip("link", "set", "port", "master", bridgeOf(used))
	for _, i := range []int{orphan, used, shared, gone, odd} {
		check(t, ours.Forget(bridgeOf(i)))
	}
	again := h.firewall(nil)
	check(t, again.Sync(again.Mark(), []firewall.Network{network(known, "internet")}))
	return bridgeBench{host: h, ours: ours, again: again, theirs: theirs}
}

// abandoned returns the only orphan, which both firewalls of the deployment must find.
func (b bridgeBench) abandoned(t *testing.T) (only firewall.Bridge) {
	t.Helper()
	for who, f := range map[string]*firewall.Firewall{
		"the firewall that forgot them": b.ours,
		"a later firewall":              b.again,
	} {
		found, err := f.Abandoned()
		check(t, err)
		if len(found) != 1 || found[0].Name != bridgeOf(orphan) || found[0].Subnet != network(orphan, "internet").Subnet {
			t.Fatalf("%s finds %+v", who, found)
		}
		only = found[0]
	}
	return only
}

// refuses checks that the later firewall does not remove a bridge.
func (b bridgeBench) refuses(t *testing.T, what string, bridge firewall.Bridge) {
	t.Helper()
	if removed, err := b.again.RemoveBridge(bridge); removed || err != nil {
		t.Errorf("%s: removed %t, %v", what, removed, err)
	}
	if !b.again.Exists(bridge.Name) {
		t.Errorf("%s: the bridge is gone", what)
	}
}

func TestOnlyBridgesMadeForADeploymentAreItsOrphans(t *testing.T) {
	t.Parallel()
	b := newBridgeBench(t)
	b.abandoned(t)
	record := b.nft("list", "set", "inet", "boxfleet-test-main", "made")
	for i, want := range map[int]bool{orphan: true, used: true, shared: true, known: true, odd: true, gone: false,
		foreign: false} {
		if strings.Contains(record, `"`+bridgeOf(i)+`"`) != want {
			t.Errorf("%s is recorded: %t, want %t", bridgeOf(i), !want, want)
		}
	}
	for what, i := range map[string]int{"in use": used, "shared": shared, "another's": foreign, "known": known,
		"no bridge": odd} {
		b.refuses(t, what, firewall.Bridge{Name: bridgeOf(i), Index: b.index(bridgeOf(i))})
	}
}

// TestABridgeIsRemovedOnlyWhileItIsAnOrphan changes the orphan after it was listed.
func TestABridgeIsRemovedOnlyWhileItIsAnOrphan(t *testing.T) {
	t.Parallel()
	b := newBridgeBench(t)
	listed := b.abandoned(t)
	b.ip("link", "set", "port", "master", bridgeOf(orphan))
	b.refuses(t, "in use since", listed)
	b.ip("link", "set", "port", "master", bridgeOf(used))
	check(t, b.theirs.Protect(network(orphan, "internet")))
	b.refuses(t, "shared since", listed)
	check(t, b.theirs.Forget(bridgeOf(orphan)))
	check(t, b.again.Protect(network(orphan, "internet")))
	b.refuses(t, "known since", listed)
	check(t, b.again.Forget(bridgeOf(orphan)))
	b.ip("link", "delete", bridgeOf(orphan))
	b.ip("link", "add", bridgeOf(orphan), "type", "bridge")
	b.refuses(t, "another bridge of the same name", listed)

	found, err := b.again.Abandoned()
	check(t, err)
	if removed, err := b.again.RemoveBridge(found[0]); !removed || err != nil {
		t.Errorf("removed %t, %v", removed, err)
	}
	if b.again.Exists(bridgeOf(orphan)) {
		t.Error("the bridge still exists")
	}
	if found, err := b.again.Abandoned(); len(found) > 0 || err != nil {
		t.Errorf("still abandoned: %+v, %v", found, err)
	}
}
