package coordinator

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// exec requests an exec. Requests for the same exec have the same request id.
func (d *deployment) exec(sandbox, id string) *protocol.Reply {
	d.t.Helper()
	return d.request(protocol.VerbExec, sandbox, "r-"+sandbox+"-"+id,
		protocol.Request{ExecID: id, Exec: &protocol.ExecSpec{Command: []string{"true"}}})
}

// last returns the record of a sandbox's last message.
func (d *deployment) last(sandbox string) uint64 {
	d.t.Helper()
	batches, err := d.conn.HistoryTail(d.t.Context(), "default", sandbox, 0)
	if err != nil || len(batches) == 0 {
		d.t.Fatal(batches, err)
	}
	return batches[len(batches)-1].Record
}

// covered returns the record from which a new coordinator would follow the log, and the record of each snapshot. For an
// unusable snapshot, the record is 0.
func (d *deployment) covered() (from uint64, records map[string]uint64) {
	d.t.Helper()
	records = map[string]uint64{}
	from, err := d.conn.ReadSnapshots(d.t.Context(), func(_, sandbox string, s *jetstream.Snapshot) {
		if records[sandbox] = 0; s != nil {
			records[sandbox] = s.Record
		}
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return from, records
}

func TestASandboxTooLargeForASnapshotBlocksNoOthers(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.coordinator("c1", Timing{Snapshot: 20 * time.Millisecond})
	d.ready("large")
	for i := range 3 {
		d.work("large", func(*protocol.State) (events []protocol.Event) {
			for k := range 4 {
				events = append(events, protocol.Event{Kind: protocol.ExecAccepted, Request: "r",
					Exec: &protocol.ExecDetails{
						ID: fmt.Sprint("x", 4*i+k), Spec: &protocol.ExecSpec{Command: []string{"true"},
							Stdin: make([]byte, 100<<10)}}})
			}
			return events
		})
	}
	d.create("small", protocol.SandboxSpec{Image: "i"})
	last := d.last("small")
	d.eventually("the snapshots cover the whole log", func() bool {
		from, records := d.covered()
		return from == last+1 && records["small"] == last
	})
	if _, records := d.covered(); len(records) != 2 || records["large"] != 0 {
		t.Errorf("the records of the snapshots are %v", records)
	}
	stop()
	defer d.coordinator("c2", Timing{Snapshot: time.Hour})()
	if b := d.list()["large"]; b == nil || b.ActiveExecs != 12 {
		t.Errorf("after a restart the sandbox is %+v", b)
	}
	if r := d.exec("large", "x3"); !refused(r) {
		t.Errorf("a request with a used exec id is answered with %+v", r)
	}
	if r := d.exec("large", "new"); r.Error != nil {
		t.Error(r.Error)
	}
}

// One sandbox's snapshot cannot be written, for a reason that concerns only that sandbox.
func TestASnapshotThatCannotBeWrittenBlocksNoOthersAndIsNotSkipped(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.coordinator("c1", Timing{Snapshot: time.Hour})
	d.ready("bad")
	d.create("good", protocol.SandboxSpec{Image: "i"})
	stop()
	// The stored snapshot names a message that cannot be read.
	nc, err := nats.Connect(d.server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ask := func(subject string, data []byte) {
		t.Helper()
		if _, err := nc.Request(subject, data, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	last := d.last("good")
	ask(protocol.AppendSubject("evil", "default", "bad"), []byte("x"))
	ask("$KV."+protocol.BucketSandboxes+".default.bad",
		protocol.Encode(&jetstream.Snapshot{Version: 1, Record: last + 1, Fold: protocol.FoldVersion,
			State: &protocol.State{}}))
	defer d.coordinator("c2", Timing{Snapshot: 20 * time.Millisecond})()
	d.create("late", protocol.SandboxSpec{Image: "i"})
	d.eventually("the other sandboxes have snapshots", func() bool {
		n := 0
		for _, sandbox := range []string{"good", "late"} {
			if _, err := d.conn.Snapshot(t.Context(), "default", sandbox); err == nil {
				n++
			}
		}
		return n == 2
	})
	if from, _ := d.covered(); from != 1 {
		t.Errorf("the log would be followed from record %d, after events that are in no snapshot", from)
	}
}

// A leader is delayed while it writes a page of exec ids, and another leader takes over. The late write must fail.
func TestP3_ALateWriteOfAnOldLeaderFreesNoExecID(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	l, goOn, held := &line{server: d.server}, make(chan struct{}), make(chan struct{})
	old := d.run(Config{Name: "c1", Conn: d.connectAs(jetstream.Config{InProcess: l, Name: "c1"}),
		Timing: Timing{Snapshot: 20 * time.Millisecond}})
	defer func() { old() }()
	l.hold("PUB $KV."+protocol.BucketExecIDs, func() {
		close(held)
		<-goOn
	})
	d.ready("a")
	stop := d.coordinator("c2", Timing{Snapshot: 20 * time.Millisecond})
	zero := 0
	run := func(from, to int) {
		d.work("a", func(*protocol.State) (events []protocol.Event) {
			for i := from; i < to; i++ {
				id := fmt.Sprint("x", i)
				events = append(events,
					protocol.Event{Kind: protocol.ExecAccepted, Request: "r-" + id,
						Exec: &protocol.ExecDetails{ID: id, Spec: &protocol.ExecSpec{Command: []string{"true"}}}},
					protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: id, Boot: "b"}},
					protocol.Event{Kind: protocol.ExecFinished,
						Exec: &protocol.ExecDetails{ID: id, ExitCode: &zero, Inline: true}})
			}
			return events
		})
	}
	run(0, 1)
	<-held
	const execs = keptExecs + 10 // so many that the first execs are not kept in memory
	run(1, execs/2)
	run(execs/2, execs)
	last := d.last("a")
	stored := func() int { return d.storedExecs("a") }
	d.eventually("the next leader has stored all execs", func() bool {
		from, _ := d.covered()
		return from == last+1 && stored() == execs
	})
	stop()
	close(goOn)
	d.eventually("the old leader leads again, after its late write", func() bool {
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointPing, &protocol.Query{})
		return err == nil && reply.Ping.Leader
	})
	if n := stored(); n != execs {
		t.Errorf("the stored index has %d of %d exec ids", n, execs)
	}
	old()
	old = func() {}
	defer d.coordinator("c3", Timing{Snapshot: time.Hour})()
	for _, id := range []string{"x0", "x1", "x2"} {
		r := d.request(protocol.VerbExec, "a", "other-"+id,
			protocol.Request{ExecID: id, Exec: &protocol.ExecSpec{Command: []string{"true"}}})
		if !refused(r) {
			t.Errorf("another request for exec id %s is answered with %+v", id, r)
		}
	}
}

// The server's store is replaced by an older copy. Reads and execs work again, whether the coordinator keeps running or
// starts again.
func TestAfterTheLogWasSetBackReadsAndExecsWorkAgain(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"the coordinator keeps running": false,
		"the coordinator starts again": true} {
		for part, everything := range map[string]bool{"all of the store": true, "the log, not the snapshots": false} {
			t.Run(name+", "+part, func(t *testing.T) {
				t.Parallel()
				setBack(t, restarted, everything)
			})
		}
	}
}

func setBack(t *testing.T, restarted, everything bool) {
	dir, copied := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	server, err := embedded.Start(embedded.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	d := &deployment{t: t, server: server}
	connect := func(name string) *jetstream.Conn {
		return d.connectAs(jetstream.Config{URL: server.ClientURL(), Name: name})
	}
	d.conn = connect("test")
	around := func(f func() error) {
		t.Helper()
		var back atomic.Bool // the old connection may look alive for a moment
		defer d.conn.OnReconnect(func() { back.Store(true) })()
		server.Stop()
		err := f()
		if err == nil {
			server, err = server.Restart()
		}
		if err != nil {
			t.Fatal(err)
		}
		d.eventually("the test is connected again", back.Load)
	}
	timing := Timing{Snapshot: 20 * time.Millisecond, Scan: 20 * time.Millisecond}
	stop := d.run(Config{Name: "c1", Conn: connect("c1"), Timing: timing})
	d.ready("a")
	d.ready("b")
	if r := d.exec("a", "x1"); r.Error != nil {
		t.Fatal(r.Error)
	}
	from := func() bool { at, _ := d.covered(); return at == d.last("a")+1 }
	d.eventually("snapshots cover the whole log", from)
	around(func() error { return os.CopyFS(copied, os.DirFS(dir)) })
	for _, id := range []string{"x2", "x3"} {
		if r := d.exec("a", id); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	d.ready("lost")
	if r := d.exec("a", "x4"); r.Error != nil {
		t.Fatal(r.Error)
	}
	d.eventually("snapshots cover the whole log", from)
	if restarted {
		stop()
	}
	events := filepath.Join("jetstream", "$G", "streams", protocol.StreamEvents)
	around(func() error {
		if everything {
			events = "."
		}
		if err := os.RemoveAll(filepath.Join(dir, events)); err != nil {
			return err
		}
		return os.CopyFS(filepath.Join(dir, events), os.DirFS(filepath.Join(copied, events)))
	})
	if restarted {
		stop = d.run(Config{Name: "c2", Conn: connect("c2"), Timing: timing})
	}
	defer func() { stop() }()
	for i, sandbox := range []string{"a", "b", "a"} {
		if r := d.exec(sandbox, fmt.Sprint("y", i)); r.Error != nil {
			t.Fatalf("an exec in %s: %v", sandbox, r.Error)
		}
	}
	d.eventually("the list agrees with the log", func() bool {
		all := d.list()
		if !everything { // the create of "lost" is still in the queue, and was decided again
			delete(all, "lost")
		}
		return len(all) == 2 && all["a"] != nil && all["b"] != nil &&
			all["a"].ActiveExecs == 3 && all["b"].ActiveExecs == 1
	})
	reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointExecs, &protocol.Query{Sandbox: "a", Limit: 10})
	if err != nil || len(reply.Execs) != 3 {
		t.Errorf("the execs of a are %v, %v", reply, err)
	}
	if r := d.exec("lost", "x1"); everything && (r.Error == nil || r.Error.Code != protocol.NotFound) {
		t.Errorf("an exec in a sandbox that the log does not have is answered with %+v", r)
	}
	// The coordinator follows events that another process appends now.
	d.work("b", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: "y1", Inline: true}}}
	})
	d.eventually("the event of the other process is folded", func() bool {
		b := d.list()["b"]
		return b != nil && b.ActiveExecs == 0
	})
	d.eventually("the new snapshots are stored", func() bool {
		at, records := d.covered()
		return at > 1 && len(records) >= 2 && records["a"] == d.last("a") && records["b"] == d.last("b")
	})
}

// A coordinator starts with the checkpoint of a log that has been rewound since. It must not assume that snapshots
// cover the present log.
func TestACheckpointOfALostHistoryCoversNothing(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.coordinator("c0", Timing{Snapshot: time.Hour})
	d.create("a", protocol.SandboxSpec{Image: "i"})
	stop()
	lost := protocol.Reservation{Request: "gone", Fingerprint: "f", Time: time.Now()}
	if before, err := d.conn.ReserveSandbox(t.Context(), "default", "lost", lost); err != nil || before != nil {
		t.Fatal(before, err)
	}
	if err := d.conn.WriteCheckpoint(t.Context(), jetstream.Position{Record: 1000, Batch: "lost"}, 2); err != nil {
		t.Fatal(err)
	}
	stop = d.coordinator("c1", Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond,
		Abandon: 200 * time.Millisecond})
	d.eventually("the id that was reserved but not used is ended", func() bool { return d.list("failed")["lost"] != nil })
	last := d.last("lost")
	d.eventually("the checkpoint covers the present log", func() bool {
		at, _, err := d.conn.Checkpoint(t.Context())
		return err == nil && at.Record == last
	})
	stop()
	defer d.coordinator("c2", Timing{Snapshot: time.Hour})()
	if d.list()["a"] == nil {
		t.Error("sandbox a is not known after a restart")
	}
}
