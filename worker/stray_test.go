package worker

import (
	"net/netip"
	"slices"
	"testing"
	"time"

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

// Who was not told of anything new reads the log again after a while, and where something may have been missed.
func TestTheLogIsReadAgainThoughNobodySaysSo(t *testing.T) {
	now := time.Now()
	s := &sandbox{w: &worker{listening: newListening()}, readAgain: now.Add(time.Minute)}
	for _, step := range []struct {
		after  time.Duration
		missed bool
		stale  bool
	}{{0, false, false}, {time.Minute - 1, false, false}, {time.Minute + 1, false, true}, {0, true, true}} {
		if s.stale = false; step.missed {
			s.w.listening.again()
		}
		if s.mayBeStale(now.Add(step.after)); s.stale != step.stale {
			t.Errorf("after %s, missed %v: it is to be read again: %v", step.after, step.missed, s.stale)
		}
	}
}
