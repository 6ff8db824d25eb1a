package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// TestASandboxWithThousandsOfExecsIsDeleted uses a history from a version that did not limit the active execs of a
// sandbox. 6000 execs were accepted while the worker was away, and no exec has started.
func TestASandboxWithThousandsOfExecsIsDeleted(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	s := f.Create("many")
	worker := f.Processes("worker")[0]
	worker.Kill()
	spec := protocol.ExecSpec{Command: []string{"true"}}
	spec.Resolve()
	j := f.AsCoordinator("k0").Journal(jetstream.JournalConfig{Tenant: protocol.DefaultTenant, Sandbox: s.ID(),
		Writer: "k0"})
	const execs, perMessage = 6000, 500
	for i := 0; i < execs; i += perMessage {
		if _, err := j.Do(ctx, func(*protocol.State, time.Time) (events []protocol.Event, _ error) {
			for n := i; n < i+perMessage; n++ {
				events = append(events, protocol.Event{Kind: protocol.ExecAccepted, Request: fmt.Sprint("r", n),
					Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", n), Spec: &spec}})
			}
			return events, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	deleted := make(chan error, 1)
	go func() { deleted <- s.Delete(ctx) }()
	f.Eventually(10*time.Second, "the sandbox is marked for deletion", func() error {
		if b := f.History("many").State.Sandbox; b.State != protocol.StateDeleting {
			return fmt.Errorf("it is %s", b.State)
		}
		return nil
	})
	worker.Restart()
	began := time.Now()
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	t.Logf("the sandbox was deleted in %s", time.Since(began))
	if b := f.History("many").State.Sandbox; b.ActiveExecs != 0 || b.TotalExecs != execs {
		t.Errorf("%d of %d execs have not ended", b.ActiveExecs, b.TotalExecs)
	}
}
