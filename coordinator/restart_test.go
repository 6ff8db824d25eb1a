package coordinator

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// duplicates is how long the server recognizes a repeated publish.
const duplicates = 150 * time.Millisecond

func TestARestartedCoordinatorContinuesFromItsSnapshots(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Snapshot: 50 * time.Millisecond}
	stop := d.coordinator("c1", timing)
	for i := range 20 {
		id := fmt.Sprint("s", i)
		if r := d.request(protocol.VerbCreate, id, "create-"+id,
			protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i",
				Labels: map[string]string{"n": id}}}); r.Error != nil {
			t.Fatal(r.Error)
		}
		if i%4 == 0 {
			d.request(protocol.VerbDelete, id, "delete-"+id, protocol.Request{})
		}
	}
	states := []string{"pending", "deleted"}
	before := d.list(states...)
	if len(before) != 20 {
		t.Fatalf("%d sandboxes are listed", len(before))
	}
	var snapshots int
	d.eventually("every event is in a snapshot", func() bool {
		snapshots = 0
		from, err := d.conn.ReadSnapshots(t.Context(), func(string, string, *jetstream.Snapshot) { snapshots++ })
		recordErr := d.conn.ReadEndedRecord(t.Context(), func(*jetstream.EndedRecord) { snapshots++ })
		return err == nil && recordErr == nil && from > 25 && snapshots == 20
	})
	stop()

	// Everything written after the last snapshot is read from the log.
	stop = d.coordinator("c2", Timing{Snapshot: time.Hour})
	if r := d.request(protocol.VerbDelete, "s1", "delete-s1", protocol.Request{}); r.Error != nil {
		t.Fatal(r.Error)
	}
	stop()
	stop = d.coordinator("c3", Timing{})
	defer stop()
	after := d.list(states...)
	for id, b := range before {
		got := after[id]
		if got == nil {
			t.Errorf("sandbox %s is not listed after the restart", id)
			continue
		}
		if id == "s1" {
			if got.State != protocol.StateDeleted || got.Sequence <= b.Sequence {
				t.Errorf("sandbox s1 is %s at event %d", got.State, got.Sequence)
			}
			continue
		}
		if got.State != b.State || got.Sequence != b.Sequence || got.Spec.Labels["n"] != id ||
			!got.CreatedAt.Equal(b.CreatedAt) {
			t.Errorf("sandbox %s was %+v before the restart, and is %+v", id, b, got)
		}
	}
	// Reservations are still known: another request for the id is refused.
	again := protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i", Labels: map[string]string{"n": "s2"}}}
	if r := d.request(protocol.VerbCreate, "s2", "create-s2-other", again); !refused(r) {
		t.Errorf("another request for the id s2 is answered with %+v", r)
	}
}

func TestNoSnapshotOutlivesItsSandbox(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	purged := func() bool {
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointList,
			&protocol.Query{States: []string{"deleted"}, Limit: 10})
		return err == nil && len(reply.Sandboxes) == 0
	}
	snapshots := func() map[string]bool {
		all := map[string]bool{}
		if _, err := d.conn.ReadSnapshots(t.Context(),
			func(_, sandbox string, _ *jetstream.Snapshot) { all[sandbox] = true }); err != nil {
			t.Fatal(err)
		}
		if err := d.conn.ReadEndedRecord(t.Context(), func(r *jetstream.EndedRecord) { all[r.Sandbox] = true }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	deleted := make(chan struct{})
	wait := sync.OnceFunc(func() { // delays the snapshot: a wrong purge would happen in this time
		for began := time.Now(); !purged() && time.Since(began) < time.Second; {
			time.Sleep(10 * time.Millisecond)
		}
	})
	defer d.run(Config{
		Name: "c1", CleanupTTL: 200 * time.Millisecond, Timing: Timing{Scan: 20 * time.Millisecond,
			Snapshot: 20 * time.Millisecond},
		Probe: func(point string) {
			if point != "snapshot-before-write" {
				return
			}
			select {
			case <-deleted:
				wait()
			default:
			}
		},
	})()
	d.create("a", protocol.SandboxSpec{Image: "i"})
	d.eventually("sandbox a has a snapshot", func() bool { return snapshots()["a"] })
	close(deleted)
	if r := d.request(protocol.VerbDelete, "a", "delete", protocol.Request{}); r.Error != nil {
		t.Fatal(r.Error)
	}
	d.eventually("sandbox a is purged", purged)
	d.create("b", protocol.SandboxSpec{Image: "i"})
	d.eventually("the next round has stored a snapshot of b", func() bool { return snapshots()["b"] })
	if snapshots()["a"] {
		t.Error("a purged sandbox has a snapshot")
	}
}

func TestACoordinatorStartsWhileNATSIsAwayForAMoment(t *testing.T) {
	t.Parallel()
	for what, asks := range map[string]string{
		"the ids are read": "CONSUMER.CREATE.KV_" + protocol.BucketExecIDs,
		"reads are served": "SUB " + protocol.APISubject("*", protocol.EndpointGet),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			l, away := &line{server: d.server}, make(chan struct{})
			l.hold(asks, func() {
				close(away)
				l.setDown(true)
				l.setDown(false)
			})
			// The request that is sent when the line breaks never gets an answer.
			conn := d.connectAs(jetstream.Config{InProcess: l, Name: "c1", Timeout: 3 * time.Second})
			stop := d.run(Config{Name: "c1", Conn: conn})
			select {
			case <-away: // perhaps only after the coordinator has reported that it is ready
			case <-time.After(10 * time.Second):
				t.Error("the coordinator never sent the request at which NATS goes away")
			}
			stop()
		})
	}
}

func TestWithoutAHostASandboxWaitsAndThenFails(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 50 * time.Millisecond})()
	create := func(id string, queueTimeout time.Duration) {
		t.Helper()
		spec := &protocol.SandboxSpec{Image: "i", QueueTimeout: protocol.Duration(queueTimeout)}
		if r := d.request(protocol.VerbCreate, id, "create-"+id, protocol.Request{Sandbox: spec}); r.Error != nil ||
			r.Sandbox.State != protocol.StatePending {
			t.Fatalf("the create is answered with %+v", r)
		}
	}
	create("a", time.Hour)
	reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointExplain, &protocol.Query{Sandbox: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if e := reply.Explain; e.Waiting != "there is no host" || e.Position != 1 || e.Deadline.IsZero() {
		t.Errorf("the explanation is %+v", e)
	}
	create("b", 300*time.Millisecond)
	d.eventually("the queue timeout fails the sandbox", func() bool {
		b := d.list("failed")["b"]
		return b != nil && b.Reason == protocol.ReasonQueueTimeout
	})
	if b := d.list("pending")["a"]; b == nil {
		t.Error("the sandbox with the longer queue timeout does not wait any more")
	}
}

func TestQ1_AnIDThatWasReservedAndNeverUsedIsEnded(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond, Abandon: 200 * time.Millisecond})()
	r := protocol.Reservation{Request: "gone", Fingerprint: "f", Time: time.Now()}
	if before, err := d.conn.ReserveSandbox(t.Context(), "default", "a", r); err != nil || before != nil {
		t.Fatal(before, err)
	}
	d.eventually("the reserved id is ended", func() bool {
		b := d.list("failed")["a"]
		return b != nil && b.Reason == protocol.ReasonAbandoned && b.Sequence == 1
	})
}

func TestOneCoordinatorLeadsAndTheNextTakesOver(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	leads := func(conn *jetstream.Conn, name string) bool {
		reply, err := conn.Query(t.Context(), "default", protocol.EndpointPing, &protocol.Query{})
		return err == nil && reply.Ping.Coordinator == name && reply.Ping.Leader
	}
	stopFirst := d.coordinator("c1", Timing{})
	d.eventually("c1 leads", func() bool { return leads(d.conn, "c1") })
	defer d.coordinator("c2", Timing{})()
	if leads(d.conn, "c2") {
		t.Error("c2 leads although c1 leads")
	}
	began := time.Now()
	stopFirst()
	d.eventually("c2 leads", func() bool { return leads(d.conn, "c2") })
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("c2 took %s to take over", took)
	}
}

// Notifications are core NATS messages, which are lost while their worker does not listen.
func TestAWorkerThatBeginsToListenIsNotifiedOfPendingSandboxes(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond, Retell: time.Hour})()
	ctx, host := t.Context(), &protocol.Host{Worker: "w1", HostID: "h1", Instance: "i1", Slots: 10, CPU: 1,
		Memory: 1 << 30, Healthy: true, Firewall: protocol.FirewallNFTables, SeenAt: time.Now()}
	if err := d.conn.RegisterHost(ctx, host); err != nil {
		t.Fatal(err)
	}
	beat := func(listening uint64) {
		t.Helper()
		if err := d.conn.Beat(&protocol.Heartbeat{Worker: "w1", HostID: "h1", Instance: "i1", Healthy: true,
			Listening: listening}); err != nil {
			t.Fatal(err)
		}
	}
	if r := d.request(protocol.VerbCreate, "a", "create",
		protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i"}}); r.Error != nil {
		t.Fatal(r.Error)
	}
	d.eventually("the sandbox is assigned", func() bool { beat(1); return d.list("pending")["a"].Assigned })
	heard := make(chan string, 100)
	stop, err := d.conn.Work("w1", func(_, sandbox string, _ *protocol.Batch) { heard <- sandbox })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for n := uint64(2); n < 4; n++ { // as after a reconnect
		beat(n)
		select {
		case got := <-heard:
			if got != "a" {
				t.Errorf("the worker is notified about sandbox %s, want a", got)
			}
		case <-time.After(3 * time.Second):
			t.Fatalf("the worker is not notified after it began to listen for the %dth time", n)
		}
	}
	for range 5 {
		beat(3)
	}
	d.notifierRan()
	if len(heard) > 1 { // the notification of the assignment may have come late, and counted as the first one above
		t.Errorf("the worker is notified %d more times without news", len(heard))
	}
}

func TestAReadIsNoOlderThanTheLog(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Fresh: time.Minute})()
	if r := d.request(protocol.VerbCreate, "a", "create",
		protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i"}}); r.Error != nil {
		t.Fatal(r.Error)
	}
	for i := range 200 {
		sequence := uint64(0)
		d.work("a", func(s *protocol.State) []protocol.Event { // another process writes
			sequence = s.Sandbox.Sequence + 1
			return []protocol.Event{{Kind: protocol.SandboxAssigned,
				Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: s.Sandbox.Generation + 1}}}
		})
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointGet, &protocol.Query{Sandbox: "a"})
		if err != nil || reply.Sandbox.Sequence < sequence {
			t.Fatalf("read %d: event %d was appended before, and the read returns %+v, %v", i, sequence, reply, err)
		}
	}
}
