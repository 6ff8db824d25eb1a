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
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: f.URL(), Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	batches, err := conn.HistoryTail(ctx, protocol.DefaultTenant, "many", 0)
	if err != nil {
		t.Fatal(err)
	}
	newest := batches[len(batches)-1]
	next, record := newest.Last()+1, newest.Record
	const execs = 6000
	for i := 0; i < execs; {
		b := &protocol.Batch{Version: protocol.Version, Tenant: protocol.DefaultTenant, Sandbox: "many",
			ID: fmt.Sprint("old-", i), Writer: "k0"}
		for ; i < execs && len(b.Events) < 1000; i++ {
			spec := protocol.ExecSpec{Command: []string{"true"}}
			spec.Resolve()
			b.Events = append(b.Events, protocol.Event{Sequence: next, Kind: protocol.ExecAccepted, Time: time.Now(),
				State: protocol.StateReady, Request: fmt.Sprint("r", i),
				Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", i), State: protocol.ExecStateAccepted, Spec: &spec}})
			next++
		}
		if record, err = conn.Append(ctx, b, record); err != nil {
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
	t.Logf("deleted in %s", time.Since(began))
	if b := f.History("many").State.Sandbox; b.ActiveExecs != 0 || b.TotalExecs != execs {
		t.Errorf("%d of %d execs have not ended", b.ActiveExecs, b.TotalExecs)
	}
}
