package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// The test acts as a scheduler that was paused and still treats a host with two slots as empty. The worker accepts two
// of four sandboxes. The other two go to another host or wait. No sandbox fails.
func TestAHostReturnsSandboxesBeyondItsSlots(t *testing.T) {
	t.Parallel()
	other := engines.Start(t, "other")
	engines.LoadImage(t, other, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Slots: 2})
	ctx := f.Context(2 * time.Minute)
	var host *protocol.Host
	f.Eventually(10*time.Second, "the coordinator knows the host", func() (err error) {
		host, err = f.Operator.Hosts().Get(ctx, "w1")
		return err
	})
	const n = 4
	stale := f.AsCoordinator("stale")
	for i := range n {
		id := fmt.Sprint("stale-", i)
		resolved, defaulted := spec.Resolve(f.Spec())
		if _, err := stale.ReserveSandbox(ctx, "default", id,
			protocol.Reservation{Request: id, Time: time.Now()}); err != nil {
			t.Fatal(err)
		}
		j := stale.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: id, Writer: "stale"})
		if _, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
			return []protocol.Event{
				{Kind: protocol.SandboxAccepted, Request: id,
					Details: &protocol.SandboxDetails{Spec: &resolved, Defaulted: defaulted}},
				{Kind: protocol.SandboxAssigned,
					Details: &protocol.SandboxDetails{Worker: "w1", HostID: host.HostID, Generation: 1}},
			}, nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := stale.NotifyWithoutBatch("w1", "default", id); err != nil {
			t.Fatal(err)
		}
	}
	on := func() (ready map[string]int, back int, err error) {
		ready = map[string]int{}
		for i := range n {
			s, err := f.Client.Get(ctx, fmt.Sprint("stale-", i))
			if err != nil {
				return ready, back, err
			}
			switch b := s.Info(); {
			case b.State == protocol.StateReady:
				ready[b.Worker]++
			case b.State == protocol.StatePending && !b.Assigned && len(b.Refusals) == 1 &&
				b.Refusals[0].Reason == "all of its 2 slots are taken":
				back++
			case b.State != protocol.StatePending:
				t.Fatalf("%s is %s: %v", b.ID, b.State, b.Error)
			}
		}
		return ready, back, nil
	}
	f.Eventually(30*time.Second, "two sandboxes are ready and two were given back", func() error {
		if ready, back, err := on(); err != nil || ready["w1"] != 2 || back != 2 {
			return fmt.Errorf("ready %v, given back %d, %v", ready, back, err)
		}
		return nil
	})
	f.Worker("w2", fleet.Role{Engine: other.Host, Slots: 2})
	f.Eventually(30*time.Second, "the others are ready on another host", func() error {
		if ready, _, err := on(); err != nil || ready["w1"] != 2 || ready["w2"] != 2 {
			return fmt.Errorf("ready %v, %v", ready, err)
		}
		return nil
	})
	f.Judge()
}
