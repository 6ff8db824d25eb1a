package jetstream_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// TestOnAppendedIsCalledOncePerBatchAfterItsAcknowledgementInOrder checks the guarantees for a caller that notifies
// other processes from OnAppended: the log has the batch, batches of one sandbox come in the order of the log, the
// journal's lock is free, and the decisions in the batch have not returned yet.
func TestOnAppendedIsCalledOncePerBatchAfterItsAcknowledgementInOrder(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		const execs = 60
		c, reader := d.opened(t), d.opened(t)
		readySandbox(t, c, d.tenant, "s1")
		writers := []string{"k1", "w1"}
		journals := make([]*jetstream.Journal, len(writers))
		appended := make([][]*protocol.Batch, len(writers))
		var notified [2]atomic.Uint64 // for each writer, the record of the batch in its last call of OnAppended
		for i, writer := range writers {
			var j *jetstream.Journal
			j = c.Journal(jetstream.JournalConfig{
				Tenant: d.tenant, Sandbox: "s1", Writer: writer, KeepEnded: 1 << 20,
				OnAppended: func(a jetstream.Appended) {
					checkAppended(t, reader, j, a)
					appended[i] = append(appended[i], a.Batch)
					notified[i].Store(a.Batch.Record)
				},
			})
			journals[i] = j
			// A journal often receives its own batch before the append is acknowledged.
			stop, err := d.opened(t).Live(d.tenant, "s1", func(b *protocol.Batch) { j.Receive(b) })
			must(t, err)
			t.Cleanup(stop)
		}
		done := make(chan struct{})
		for i, j := range journals {
			go func() {
				defer func() { done <- struct{}{} }()
				for n := range execs {
					events, err := j.Do(t.Context(), acceptExec(fmt.Sprintf("%d-%d", i, n)))
					if err != nil || len(events) != 1 {
						t.Errorf("Do returned %+v, %v; want one event", events, err)
					} else if notified[i].Load() < events[0].Record {
						t.Errorf("Do returned record %d before OnAppended was called for it", events[0].Record)
					}
				}
			}()
		}
		<-done
		<-done
		_, batches := readHistory(t, c, d.tenant, "s1")
		for i, writer := range writers {
			var want []string
			for _, b := range batches[1:] { // readySandbox wrote the first batch through its own journal
				if b.Writer == writer {
					want = append(want, fmt.Sprint(b.Record, b.ID))
				}
			}
			var got []string
			for _, b := range appended[i] {
				got = append(got, fmt.Sprint(b.Record, b.ID))
			}
			same(t, "the batches of "+writer+" in OnAppended and in the log", got, want)
		}
	})
}

// checkAppended checks the argument of one call of OnAppended.
func checkAppended(t *testing.T, reader *jetstream.Conn, j *jetstream.Journal, a jetstream.Appended) {
	last, err := reader.HistoryTail(t.Context(), a.Batch.Tenant, a.Batch.Sandbox, a.Batch.Record-1)
	if err != nil || len(last) == 0 || last[0].ID != a.Batch.ID {
		t.Errorf("OnAppended was called for record %d, which the log does not have: %v", a.Batch.Record, err)
	}
	if _, record := j.State(); record < a.Batch.Record { // State deadlocks if OnAppended is called under the lock
		t.Errorf("OnAppended was called for record %d, but the journal is folded up to %d", a.Batch.Record, record)
	}
	if a.Before.Sequence+1 != a.Batch.First() || a.After.Sequence < a.Batch.Last() {
		t.Errorf("events %d to %d: the sandbox was at %d before and at %d after",
			a.Batch.First(), a.Batch.Last(), a.Before.Sequence, a.After.Sequence)
	}
}
