package integration

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/progress"
)

// Each message is a durable write, so a create must need few messages. The history still has every phase of the create,
// with the time of that phase.
func TestACreateTakesAtMostFourMessagesOfTheLog(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	f.Create("warm") // the first create on a host takes longer
	s := f.Create("s1")
	batches, err := f.Client.Raw().History(ctx, s.ID(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var events []protocol.Event
	for _, b := range batches {
		events = append(events, b.Events...)
	}
	var phases []string
	for i, e := range events {
		if e.Kind == protocol.SandboxPreparing {
			phases = append(phases, e.Details.Phase)
		}
		if i > 0 && e.Time.Before(events[i-1].Time) {
			t.Errorf("event %d, %s, is older than the event before it", e.Sequence, e.Kind)
		}
	}
	if want := []string{"image", "network", "container", "start"}; !slices.Equal(phases, want) {
		t.Errorf("the history has the phases %q, want %q", phases, want)
	}
	took := find(t, events, protocol.SandboxReady).Time.Sub(find(t, events, protocol.SandboxAssigned).Time)
	most := 3 // accepted, assigned, ready
	if took > progress.First {
		most += 1 + int((took-progress.First)/progress.Pause)
	}
	if len(batches) > most {
		t.Errorf("%d messages of a create that took %s, want at most %d", len(batches), took, most)
	}
	f.Judge()
}

// A worker is killed after it created the network of a sandbox. The restarted worker finds that network, even if the
// machine lost the sandbox's directory, which is not synced to disk.
func TestACreateResumesWithItsNetworkAfterLosingItsDirectory(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{CrashAt: "after-network-create"})
	ctx := f.Context(time.Minute)
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	w.AwaitKilled(20 * time.Second)
	for _, dir := range f.Directories(w) {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	w = f.Worker("w1", fleet.Role{})
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}
