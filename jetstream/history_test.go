package jetstream_test

import (
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestReceiveFoldsTheNextBatchAndReportsAGap(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		readySandbox(t, c, d.tenant, "s1")
		writer := journal(c, d.tenant, "s1", "k1")
		for _, id := range []string{"x1", "x2"} {
			_, err := writer.Do(t.Context(), acceptExec(id))
			must(t, err)
		}
		_, batches := readHistory(t, c, d.tenant, "s1")
		var applied []uint64
		j := c.Journal(jetstream.JournalConfig{
			Tenant:  d.tenant,
			Sandbox: "s1",
			Writer:  "k2",
			OnApply: func(s *protocol.State, b *protocol.Batch) { applied = append(applied, b.Last(), s.Sandbox.Sequence) },
		})
		if !j.Receive(batches[1]) {
			t.Fatal("Receive reports no gap before the second batch")
		}
		for _, b := range []*protocol.Batch{batches[0], batches[0], batches[1]} {
			if j.Receive(b) {
				t.Fatalf("Receive reports a gap before event %d", b.First())
			}
		}
		must(t, j.Refresh(t.Context()))
		same(t, "the batches and states given to OnApply", applied, []uint64{3, 3, 4, 4, 5, 5})
		_, record := j.State()
		if record != batches[2].Record {
			t.Fatalf("the journal is folded up to record %d, want %d", record, batches[2].Record)
		}
	})
}

func TestASnapshotPlusTheRestOfTheLogEqualsTheFold(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		readySandbox(t, c, d.tenant, "s1")
		first := journal(c, d.tenant, "s1", "k1")
		must(t, first.Refresh(t.Context()))
		snapshot := first.Snapshot()
		record := snapshot.Record
		_, err := c.WriteSnapshot(t.Context(), d.tenant, "s1", snapshot, 0)
		must(t, err)
		must(t, c.WriteCheckpoint(t.Context(), first.Position(), 0))
		_, err = first.Do(t.Context(), acceptExec("x1"))
		must(t, err)

		restored := journal(c, d.tenant, "s1", "k2")
		from, err := c.ReadSnapshots(t.Context(), func(tenant, _ string, s *jetstream.Snapshot) {
			if tenant == d.tenant {
				restored.Restore(s)
			}
		})
		must(t, err)
		if from != record+1 {
			t.Fatalf("the log is to be followed from record %d, want %d", from, record+1)
		}
		must(t, restored.Refresh(t.Context()))
		got, _ := restored.State()
		want, _ := readHistory(t, c, d.tenant, "s1")
		same(t, "the restored state and the fold", got, want)
	})
}

func TestWithoutSnapshotsTheLogIsFollowedFromItsBeginning(t *testing.T) {
	t.Parallel()
	from, err := startServer(t, jetstream.Assets{}).opened(t).ReadSnapshots(t.Context(), nil)
	if from != 1 || err != nil {
		t.Fatal(from, err)
	}
}

func deleteSandbox(t testing.TB, c *jetstream.Conn, tenant, sandbox string) {
	t.Helper()
	decide := func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		var events []protocol.Event
		for _, x := range s.Active() {
			events = append(events, protocol.Event{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: x.ID}})
		}
		return append(
			events,
			protocol.Event{Kind: protocol.SandboxDeleteRequested},
			protocol.Event{Kind: protocol.SandboxDeleted},
		), nil
	}
	_, err := journal(c, tenant, sandbox, "k1").Do(t.Context(), decide)
	must(t, err)
}

func TestAPurgedHistoryLeavesATombstoneAndTheReservedID(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		_, err := c.ReserveSandbox(ctx, d.tenant, "s1", protocol.Reservation{Request: "r1"})
		must(t, err)
		_, err = c.WriteExecIDs(ctx, d.tenant, "s1", 0, []uint64{7}, 0)
		must(t, err)
		readySandbox(t, c, d.tenant, "s1")
		behind := journal(c, d.tenant, "s1", "k2")
		must(t, behind.Refresh(ctx))
		_, err = c.WriteSnapshot(ctx, d.tenant, "s1", behind.Snapshot(), 0)
		must(t, err)
		must(t, publishChunks(t, c, d.tenant, "s1", "x1", 10, 2))
		_, err = journal(c, d.tenant, "s1", "k1").Do(ctx, acceptExec("x1"))
		must(t, err)
		deleteSandbox(t, c, d.tenant, "s1")
		before, _ := readHistory(t, c, d.tenant, "s1")
		for range 2 { // a second purge does no harm
			must(t, c.PurgeHistory(ctx, d.tenant, "s1"))
		}

		// A new journal sees the tombstone, and so does a journal that knew the sandbox before.
		for _, j := range []*jetstream.Journal{journal(c, d.tenant, "s1", "k3"), behind} {
			must(t, j.Refresh(ctx))
			s, _ := j.State()
			if s.Sandbox.State != protocol.StateDeleted || !s.Sandbox.HistoryPurged ||
				s.Sandbox.Sequence != before.Sandbox.Sequence {
				t.Fatalf("the sandbox after the purge: %+v", s.Sandbox)
			}
			refused := errors.New("deleted")
			_, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) { return nil, refused })
			if err != refused {
				t.Fatal(err)
			}
		}
		taken, err := c.ReserveSandbox(ctx, d.tenant, "s1", protocol.Reservation{Request: "r9"})
		if err != nil || taken == nil || taken.Request != "r1" {
			t.Fatalf("the reservation is %+v, %v", taken, err)
		}
		if _, err := c.Append(ctx, accepted(d.tenant, "s1", "k1"), 0); err != jetstream.ErrConflict {
			t.Fatalf("an append of a new history after the tombstone: %v, want a conflict", err)
		}
		if out, errs, err := c.OutputEnd(ctx, outputOf(d.tenant, "s1", "x1")); out != 0 || errs != 0 || err != nil {
			t.Fatalf("output is stored up to %d and %d, want none: %v", out, errs, err)
		}
		must(t, c.ReadExecIDs(ctx, func(tenant, sandbox string, _ int, hashes []uint64) {
			if tenant == d.tenant && sandbox == "s1" {
				t.Errorf("exec ids are left: %v", hashes)
			}
		}))
		_, err = c.ReadSnapshots(ctx, func(tenant, sandbox string, _ *jetstream.Snapshot) {
			if tenant == d.tenant {
				t.Errorf("the snapshot of %s is left", sandbox)
			}
		})
		must(t, err)
	})
}
