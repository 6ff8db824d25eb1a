package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// TestAWorkerThatStartsFromASnapshotFollowsRunningExecs restarts a worker. Its sandbox has so many past execs that the
// worker looks for a snapshot. The snapshot contains a running exec. It omits the past execs, as all snapshots do when
// there are many.
func TestAWorkerThatStartsFromASnapshotFollowsRunningExecs(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	counters := startCounters(t, f, 1)
	s := counters[0].s
	worker := f.Processes("worker")[0]
	worker.Kill()
	manyPast(t, f, s.ID(), 520)
	j := f.Conn.Journal(jetstream.JournalConfig{Tenant: protocol.DefaultTenant, Sandbox: s.ID(), Writer: "k0",
		KeepEnded: 1})
	if err := j.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	snapshot := j.Snapshot()
	snapshot.State.Trim(0)
	if _, err := f.Conn.WriteSnapshot(ctx, protocol.DefaultTenant, s.ID(), snapshot, 0); err != nil {
		t.Fatal(err)
	}
	_, took := firstExec(t, f, s, func() *fleet.Process { worker.Restart(); return worker })
	t.Logf("the first exec after a restart ended after %s", took)
	stillThere(t, f, counters)
	if r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"touch", "/tmp/enough"}}); err != nil ||
		r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatal(r, err)
	}
	if r, err := counters[0].x.Wait(ctx); err != nil || r.ExitCode == nil || *r.ExitCode != 9 {
		t.Errorf("the running exec ended with %+v, %v", r, err)
	}
	if err := <-counters[0].reading; err != nil {
		t.Error(err)
	}
}

// manyPast appends ended execs to a history. Each exec has its own message.
func manyPast(t *testing.T, f *fleet.Fleet, sandbox string, execs int) {
	t.Helper()
	ctx := f.Context(time.Minute)
	spec := protocol.ExecSpec{Command: []string{"true"}}
	spec.Resolve()
	j := f.AsCoordinator("k0").Journal(jetstream.JournalConfig{Tenant: protocol.DefaultTenant, Sandbox: sandbox,
		Writer: "k0", KeepEnded: 1})
	for i := range execs {
		x := fmt.Sprint("past", i)
		if _, err := j.Do(ctx, func(*protocol.State, time.Time) ([]protocol.Event, error) {
			return []protocol.Event{
				{Kind: protocol.ExecAccepted, Request: x,
					Exec: &protocol.ExecDetails{ID: x, Spec: &spec}},
				{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: x, Inline: true}},
			}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestACoordinatorKilledWhileItCompacts kills the scheduling coordinator after it has written a segment and before it
// updates the manifest. Afterwards a worker starts, and a client reads from the first event. Both find the whole
// history.
func TestACoordinatorKilledWhileItCompacts(t *testing.T) {
	t.Parallel()
	timing := coordinator.Timing{Snapshot: 100 * time.Millisecond, Compact: 100 * time.Millisecond}
	histories := coordinator.Histories{Keep: 10, MinBatches: 10}
	f := fleet.Start(t, fleet.Options{Coordinators: -1})
	c := f.Coordinator("c1", fleet.Role{Timing: timing})
	f.Connect()
	worker := f.Worker("w1", fleet.Role{})
	ctx := f.Context(2 * time.Minute)
	s := f.Create("s")
	run := func() {
		t.Helper()
		for range 8 {
			if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	run()
	c.Kill()
	f.Coordinator("c1", fleet.Role{Timing: timing, Histories: histories, CrashAt: "compact-before-manifest"}).
		AwaitKilled(30 * time.Second) // the coordinator compacts only when it holds the scheduler's lock
	f.Coordinator("c2", fleet.Role{Timing: timing, Histories: histories})
	f.Eventually(30*time.Second, "the log has only the newest events", func() error {
		_, err := f.Conn.Record(ctx, f.History("s").Events[5].Record)
		if protocol.CodeOf(err) != protocol.NotFound {
			return fmt.Errorf("event 6 is still in the log: %v", err)
		}
		return nil
	})
	worker.Kill()
	worker.Restart()
	run()
	next := uint64(1)
	for e, err := range f.Client.Sandbox("s").Events(ctx) {
		if err != nil || e.Sequence != next {
			t.Fatalf("got event %d instead of %d: %v", e.Sequence, next, err)
		}
		next++
	}
	if b := f.History("s").State.Sandbox; b.TotalExecs != 16 || b.ActiveExecs != 0 || b.Sequence != next-1 {
		t.Errorf("%d execs, %d active, and %d of %d events", b.TotalExecs, b.ActiveExecs, next-1, b.Sequence)
	}
	f.Judge()
}
