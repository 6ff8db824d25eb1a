package sandbox

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestAStrayNetworkThatIsGoneIsLeftOutEvenIfItsSubnetIsUsedAgain(t *testing.T) {
	subnet := netip.MustParsePrefix("10.201.0.0/28")
	objects := []Object{{id: "container"}, {id: "gone", Network: true, Subnet: subnet}, {id: "there", Network: true}}
	got := withoutGone(objects, []docker.Network{{ID: "there"}, {ID: "new", Subnet: subnet}})
	if !slices.EqualFunc(got, []string{"container", "there"}, func(o Object, id string) bool { return o.id == id }) {
		t.Errorf("withoutGone returns %+v, want the container and the network that the engine lists", got)
	}
}

// A sandbox reads the log again after a while without notifications, and after a notification may have been lost.
func TestTheLogIsReadAgainWithoutANotification(t *testing.T) {
	now := time.Now()
	listened := uint64(0)
	s := &Sandbox{host: &Host{Listening: func() uint64 { return listened }}, readAgain: now.Add(time.Minute)}
	for _, step := range []struct {
		after time.Duration
		lost  bool
		stale bool
	}{{0, false, false}, {time.Minute - 1, false, false}, {time.Minute + 1, false, true}, {0, true, true}} {
		if s.stale = false; step.lost {
			listened++
		}
		if s.refreshIfDue(now.Add(step.after)); s.stale != step.stale {
			t.Errorf("after %s, notifications lost: %v: the log is read again: %v", step.after, step.lost, s.stale)
		}
	}
}
