package firewall_test

import (
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/worker/firewall"
)

// The networks of a bridgeBench, one of each kind. Only the bridge of orphan may be removed.
const (
	orphan  = iota // no longer protected, and no interface is attached to its bridge
	used           // no longer protected, but an interface is attached to its bridge
	shared         // no longer protected, but another deployment protects it too
	foreign        // only another deployment protects it
	gone           // no longer protected, and has no bridge
	known          // still protected
	odd            // no longer protected, and the interface with the bridge's name is no bridge
)

func bridgeOf(i int) string { return network(i, "internet").Bridge }

// bridgeBench is a host with networks of all kinds.
type bridgeBench struct {
	*host
	ours   *firewall.Firewall // the firewall of this deployment
	again  *firewall.Firewall // the firewall of a later worker, which knows the bridges only from the table's record
	theirs *firewall.Firewall // the firewall of another deployment
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
			t.Errorf("the bridge %s exists before it was created", bridgeOf(i))
		}
		check(t, ours.Protect(network(i, "internet")))
	}
	for _, i := range []int{shared, foreign} {
		check(t, theirs.Protect(network(i, "internet")))
	}
	for _, i := range []int{orphan, used, shared, foreign, known} {
		h.ip("link", "add", bridgeOf(i), "type", "bridge")
		if !ours.Exists(bridgeOf(i)) {
			t.Errorf("the bridge %s does not exist after it was created", bridgeOf(i))
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

// abandoned returns the bridge of orphan. It fails the test unless both firewalls of the deployment list only this
// bridge.
func (b bridgeBench) abandoned(t *testing.T) (only firewall.Bridge) {
	t.Helper()
	for who, f := range map[string]*firewall.Firewall{
		"the firewall that protected the network": b.ours,
		"a later worker's firewall":               b.again,
	} {
		found, err := f.Abandoned()
		check(t, err)
		if len(found) != 1 || found[0].Name != bridgeOf(orphan) || found[0].Subnet != network(orphan, "internet").Subnet {
			t.Fatalf("%s lists the abandoned bridges %+v, want only %s", who, found, bridgeOf(orphan))
		}
		only = found[0]
	}
	return only
}

// refuses checks that the later worker's firewall does not remove a bridge.
func (b bridgeBench) refuses(t *testing.T, what string, bridge firewall.Bridge) {
	t.Helper()
	if removed, err := b.again.RemoveBridge(bridge); removed || err != nil {
		t.Errorf("removing a bridge that is %s: got removed %t and error %v, want neither", what, removed, err)
	}
	if !b.again.Exists(bridge.Name) {
		t.Errorf("a bridge that is %s was removed", what)
	}
}

func TestOnlyUnusedBridgesOfTheDeploymentAreAbandoned(t *testing.T) {
	t.Parallel()
	b := newBridgeBench(t)
	b.abandoned(t)
	record := b.nft("list", "set", "inet", "boxfleet-test-main", "made")
	for i, want := range map[int]bool{orphan: true, used: true, shared: true, known: true, odd: true, gone: false,
		foreign: false} {
		if strings.Contains(record, `"`+bridgeOf(i)+`"`) != want {
			t.Errorf("bridge %s is in the record: %t, want %t", bridgeOf(i), !want, want)
		}
	}
	for what, i := range map[string]int{"in use": used, "also protected by another deployment": shared,
		"only another deployment's": foreign, "still protected": known, "another kind of interface": odd} {
		b.refuses(t, what, firewall.Bridge{Name: bridgeOf(i), Index: b.index(bridgeOf(i))})
	}
}

// The bridge may change between the moment it is listed and its removal.
func TestABridgeIsRemovedOnlyWhileItIsAbandoned(t *testing.T) {
	t.Parallel()
	b := newBridgeBench(t)
	listed := b.abandoned(t)
	b.ip("link", "set", "port", "master", bridgeOf(orphan))
	b.refuses(t, "in use again", listed)
	b.ip("link", "set", "port", "master", bridgeOf(used))
	check(t, b.theirs.Protect(network(orphan, "internet")))
	b.refuses(t, "protected by another deployment by now", listed)
	check(t, b.theirs.Forget(bridgeOf(orphan)))
	check(t, b.again.Protect(network(orphan, "internet")))
	b.refuses(t, "protected again", listed)
	check(t, b.again.Forget(bridgeOf(orphan)))
	b.ip("link", "delete", bridgeOf(orphan))
	b.ip("link", "add", bridgeOf(orphan), "type", "bridge")
	b.refuses(t, "a new bridge with the same name", listed)

	found, err := b.again.Abandoned()
	check(t, err)
	if removed, err := b.again.RemoveBridge(found[0]); !removed || err != nil {
		t.Errorf("removing the abandoned bridge: got removed %t and error %v", removed, err)
	}
	if b.again.Exists(bridgeOf(orphan)) {
		t.Error("the abandoned bridge still exists after its removal")
	}
	if found, err := b.again.Abandoned(); len(found) > 0 || err != nil {
		t.Errorf("after the removal, the abandoned bridges are %+v, and the error is %v; want none", found, err)
	}
}
