package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// manyBatches appends batches as fast as the server accepts them. Each batch has the acceptance and the end of one
// exec.
func manyBatches(t testing.TB, c *jetstream.Conn, tenant, sandbox string, execs int) {
	t.Helper()
	readySandbox(t, c, tenant, sandbox)
	last, err := c.LastBatch(t.Context(), tenant, sandbox) // from the leader: a replica may be behind
	must(t, err)
	next, record := last.Last()+1, last.Record
	for i := range execs {
		x := fmt.Sprint("x", i)
		b := &protocol.Batch{
			Version: protocol.Version,
			Tenant:  tenant,
			Sandbox: sandbox,
			ID:      fmt.Sprint("b", i),
			Writer:  "k1",
			Events: []protocol.Event{
				{
					Sequence: next,
					Kind:     protocol.ExecAccepted,
					Time:     time.Now().UTC(),
					State:    protocol.StateReady,
					Request:  x,
					Exec: &protocol.ExecDetails{
						ID: x, State: protocol.ExecStateAccepted, Spec: &protocol.ExecSpec{Command: []string{"true"}}},
				},
				{
					Sequence: next + 1,
					Kind:     protocol.ExecCancelled,
					Time:     time.Now().UTC(),
					State:    protocol.StateReady,
					Exec: &protocol.ExecDetails{
						ID: x, State: protocol.ExecStateCancelled, Inline: true},
				},
			},
		}
		appended, err := c.Append(t.Context(), b, record)
		if errors.Is(err, jetstream.ErrConflict) { // if an answer was lost in a cluster, the batch may be stored
			last, lost := c.LastBatch(t.Context(), tenant, sandbox)
			must(t, lost)
			if last.ID == b.ID {
				appended, err = last.Record, nil
			}
		}
		must(t, err)
		next, record = next+2, appended
	}
}

// Each attempt ends before it has read the entire history. The next attempt continues.
func TestALongHistoryIsReadInSeveralAttempts(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	manyBatches(t, c, d.tenant, "s1", 1500)
	want, _ := readHistory(t, c, d.tenant, "s1")

	ctx, stop := context.WithCancel(t.Context())
	applied := 0
	j := c.Journal(
		jetstream.JournalConfig{
			Tenant:  d.tenant,
			Sandbox: "s1",
			Writer:  "k2",
			OnApply: func(*protocol.State, *protocol.Batch) {
				if applied++; applied%600 == 0 {
					stop()
				}
			},
		},
	)
	for tries := 1; ; tries++ {
		err := j.Refresh(ctx)
		if err == nil {
			if tries < 2 {
				t.Error("the history was read in a single attempt")
			}
			break
		}
		if s, _ := j.State(); s.Exists() {
			t.Fatalf("before the history is read, the journal shows the state at event %d", s.Sandbox.Sequence)
		}
		if tries > 10 {
			t.Fatal(err)
		}
		ctx, stop = context.WithCancel(t.Context())
	}
	stop()
	if applied != 1501 {
		t.Errorf("%d messages were folded, want 1501", applied)
	}
	got, _ := j.State()
	if got.Sandbox.Sequence != want.Sandbox.Sequence || got.Sandbox.TotalExecs != 1500 {
		t.Errorf("the journal is at event %d with %d execs", got.Sandbox.Sequence, got.Sandbox.TotalExecs)
	}
}

func TestALongHistoryStartsFromItsSnapshot(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		manyBatches(t, c, d.tenant, "s1", 520)
		snapshot := snapshotNow(t, c, d.tenant, "s1")
		moreHistory(t, c, d.tenant, "s1", 1000, 1020)
		_, err := journal(c, d.tenant, "s1", "k1").Do(ctx, acceptExec("active"))
		must(t, err)
		want, _ := readHistory(t, c, d.tenant, "s1")
		opened, applied := uint64(0), []uint64(nil)
		open := func() *jetstream.Journal {
			opened, applied = 0, nil
			return c.Journal(
				jetstream.JournalConfig{Tenant: d.tenant, Sandbox: "s1", Writer: "w1", KeepEnded: 1, FromSnapshot: true,
					OnOpen:  func(s *protocol.State, _ uint64) { opened = s.Sandbox.Sequence },
					OnReset: func() { applied = nil },
					OnApply: func(_ *protocol.State, b *protocol.Batch) { applied = append(applied, b.First()) }},
			)
		}
		j := open()
		must(t, j.Refresh(ctx))
		got, _ := j.State()
		want.Trim(1)
		same(t, "the fold", got, want)
		if from := snapshot.State.Sandbox.Sequence; len(applied) != 41 || applied[0] != from+1 ||
			opened != want.Sandbox.Sequence {
			t.Errorf("after the snapshot at event %d, OnApply got the batches from %v, and OnOpen event %d",
				from, applied, opened)
		}
		_, err = j.Do(ctx, acceptExec("more"))
		must(t, err)

		// Snapshots of another history of the log, or of another fold version, are not used.
		for name, spoil := range map[string]func(s *jetstream.Snapshot){
			"of another batch":    func(s *jetstream.Snapshot) { s.Batch = "other" },
			"of another sandbox":  func(s *jetstream.Snapshot) { s.Record++; s.Batch = "" },
			"of another version":  func(s *jetstream.Snapshot) { s.Fold++ },
			"without its content": func(s *jetstream.Snapshot) { s.State = nil },
		} {
			if name == "of another sandbox" {
				readySandbox(t, c, d.tenant, "other")
			}
			s := *snapshotNow(t, c, d.tenant, "s1")
			must(t, c.PurgeSnapshot(ctx, d.tenant, "s1"))
			spoil(&s)
			_, err := c.WriteSnapshot(ctx, d.tenant, "s1", &s, 0)
			must(t, err)
			j := open()
			must(t, j.Refresh(ctx))
			if applied[0] != 1 {
				t.Errorf("the journal started from a snapshot %s", name)
			}
			full, _ := readHistory(t, c, d.tenant, "s1")
			full.Trim(1)
			got, _ := j.State()
			same(t, "the fold without a snapshot "+name, got, full)
		}
	})
}

// BenchmarkOpenedWithPastExecs measures the time and the retained memory of a worker's journal at its start.
func BenchmarkOpenedWithPastExecs(b *testing.B) {
	for _, execs := range []int{0, 1000, 10_000, 100_000} {
		for _, from := range []string{"snapshot", "history"} {
			b.Run(fmt.Sprintf("execs=%d/%s", execs, from), func(b *testing.B) {
				d := startServer(b, jetstream.Assets{})
				c := d.opened(b)
				manyBatches(b, c, d.tenant, "s1", execs)
				snapshotNow(b, c, d.tenant, "s1")
				moreHistory(b, c, d.tenant, "s1", execs, execs+50)
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				for b.Loop() {
					j := c.Journal(
						jetstream.JournalConfig{
							Tenant:       d.tenant,
							Sandbox:      "s1",
							Writer:       "w1",
							KeepEnded:    1,
							FromSnapshot: from == "snapshot",
						},
					)
					must(b, j.Refresh(b.Context()))
				}
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/(1<<20), "allocated-MiB/op")
				b.ReportMetric((float64(after.Sys)-float64(before.Sys))/(1<<20), "more-from-OS-MiB")
			})
		}
	}
}
