package coordinator

import (
	"fmt"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// ranExecs gives a sandbox the ended execs xN, for each N of [from, to).
func (d *deployment) ranExecs(sandbox string, from, to int) {
	d.t.Helper()
	for i := from; i < to; i++ {
		if r := d.exec(sandbox, fmt.Sprint("x", i)); r.Error != nil {
			d.t.Fatal(r.Error)
		}
		d.work(sandbox, func(*protocol.State) []protocol.Event {
			return []protocol.Event{{Kind: protocol.ExecCancelled,
				Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", i), Inline: true}}}
		})
	}
}

// readsSegments registers the host of the test's sandboxes. The parameter reads says whether the host's worker reads
// segments.
func (d *deployment) readsSegments(reads bool) {
	h := host("w1", 0)
	h.HostID, h.ReadsSegments = "h1", reads
	d.register(h)
	d.eventually("the host is known", func() bool { return d.hostIs("w1", protocol.HostReady) })
}

// emptied removes all messages of a stream.
func (d *deployment) emptied(name string) {
	d.t.Helper()
	d.raw(func(js natsjs.JetStream) error {
		s, err := js.Stream(d.t.Context(), name)
		if err == nil {
			err = s.Purge(d.t.Context())
		}
		return err
	})
}

// inLog counts the messages of a sandbox that are in the event log.
func (d *deployment) inLog(sandbox string) (count int) {
	d.t.Helper()
	batches, err := d.conn.HistoryTail(d.t.Context(), "default", sandbox, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, b := range batches {
		if _, err := d.conn.Record(d.t.Context(), b.Record); err == nil {
			count++
		}
	}
	return count
}

func TestTheLeaderMovesTheOlderPartOfALongHistoryOutOfTheLog(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond, Compact: 20 * time.Millisecond}
	histories := Histories{Keep: 8, MinBatches: 10}
	stop := d.run(Config{Name: "c1", Timing: timing, Histories: histories})
	d.ready("a")
	d.ready("short")
	d.readsSegments(true)
	d.ranExecs("a", 0, 20)
	all, err := d.conn.HistoryTail(t.Context(), "default", "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	d.eventually("the log has only the newest messages", func() bool { return d.inLog("a") < 20 })
	if n := d.inLog("short"); n < 2 {
		t.Errorf("a short history has %d messages in the log", n)
	}
	again, err := d.conn.HistoryTail(t.Context(), "default", "a", 0)
	if err != nil || len(again) != len(all) {
		t.Fatalf("the history has %d messages, and had %d before: %v", len(again), len(all), err)
	}
	for i := range all {
		if again[i].Record != all[i].Record || string(again[i].Encode()) != string(all[i].Encode()) {
			t.Fatalf("message %d has changed", i)
		}
	}
	stop()

	// A coordinator that starts now, with or without snapshots, knows the whole history.
	defer d.run(Config{Name: "c2", Timing: timing, Histories: histories})()
	if r := d.exec("a", "x3"); r.Error != nil {
		t.Errorf("a repeated request is answered with %+v", r.Error)
	}
	if r := d.request(protocol.VerbExec, "a", "another",
		protocol.Request{ExecID: "x3", Exec: &protocol.ExecSpec{Command: []string{"false"}}}); !refused(r) {
		t.Errorf("a request with a used exec id is answered with %+v", r)
	}
	if b := d.list()["a"]; b == nil || b.TotalExecs != 20 {
		t.Errorf("the sandbox is %+v", b)
	}
	d.ranExecs("a", 20, 24)
	if r := d.request(protocol.VerbDelete, "a", "gone", protocol.Request{}); r.Error != nil {
		t.Error(r.Error)
	}
}

// The snapshots and the stored index of execs are lost, so the coordinator reads the log and its segments.
func TestACoordinatorWithoutSnapshotsReadsSegments(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.run(Config{Name: "c1", Timing: Timing{Snapshot: 20 * time.Millisecond, Compact: 20 * time.Millisecond},
		Histories: Histories{Keep: 4, MinBatches: 4}})
	d.ready("a")
	d.readsSegments(true)
	d.ranExecs("a", 0, 10)
	d.eventually("the log has only the newest messages", func() bool { return d.inLog("a") < 12 })
	stop()
	for _, bucket := range []string{protocol.BucketSandboxes, protocol.BucketExecIDs} {
		d.emptied("KV_" + bucket)
	}
	defer d.coordinator("c2", Timing{})()
	if b := d.list()["a"]; b == nil || b.TotalExecs != 10 || b.State != protocol.StateReady {
		t.Errorf("the sandbox is %+v", b)
	}
	if r := d.request(protocol.VerbExec, "a", "another",
		protocol.Request{ExecID: "x0", Exec: &protocol.ExecSpec{Command: []string{"false"}}}); !refused(r) {
		t.Errorf("a request with a used exec id is answered with %+v", r)
	}
}

// A worker of an older version cannot read segments. If the oldest events left the log, the worker would see a history
// without its beginning.
func TestNoEventsLeaveTheLogUntilTheWorkerReadsSegments(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.run(Config{Name: "c1", Timing: Timing{Snapshot: 10 * time.Millisecond, Compact: 10 * time.Millisecond},
		Histories: Histories{Keep: 4, MinBatches: 4}})()
	d.ready("a")
	d.readsSegments(false)
	d.ranExecs("a", 0, 12)
	if n := d.inLog("a"); n != 26 {
		t.Errorf("%d messages are in the log, want 26", n)
	}
	d.readsSegments(true)
	d.eventually("the log has only the newest messages", func() bool { return d.inLog("a") < 12 })
}

func TestNegativeHistorySettingsAreRefused(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	for field, h := range map[string]Histories{
		"history_keep": {Keep: -1}, "history_batches": {MinBatches: -1}, "history_bytes": {MinBytes: -1},
		"history_max_age": {MaxAge: -1},
	} {
		err := Run(t.Context(), Config{Name: "c1", Conn: d.conn, Histories: h})
		if e := protocol.AsError(err); e == nil || e.Field != "coordinator."+field {
			t.Errorf("%s: %v", field, err)
		}
	}
	_, err := d.conn.Compact(t.Context(), "default", "a", jetstream.Compaction{})
	if e := protocol.AsError(err); e == nil || e.Field != "keep" {
		t.Error(err)
	}
}
