package worker

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestAStrayNetworkThatIsGoneIsNoneWhateverHasItsSubnetNow(t *testing.T) {
	subnet := netip.MustParsePrefix("10.201.0.0/28")
	objects := []labelled{{id: "container"}, {id: "gone", network: true, subnet: subnet}, {id: "there", network: true}}
	got := withoutGone(objects, []docker.Network{{ID: "there"}, {ID: "new", Subnet: subnet}})
	if !slices.EqualFunc(got, []string{"container", "there"}, func(o labelled, id string) bool { return o.id == id }) {
		t.Errorf("left: %+v", got)
	}
}
