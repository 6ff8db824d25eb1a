package coordinator

import (
	"fmt"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// inMemory runs a coordinator, and returns it so that the test can read its memory.
func (d *deployment) inMemory(cfg Config) (c *coordinator, stop func()) {
	d.t.Helper()
	made := make(chan *coordinator, 1)
	cfg.made = func(c *coordinator) { made <- c }
	stop = d.run(cfg)
	return <-made, stop
}

func (d *deployment) remove(id string) {
	d.t.Helper()
	if r := d.request(protocol.VerbDelete, id, "delete-"+id, protocol.Request{}); r.Error != nil {
		d.t.Fatal(r.Error)
	}
}

// counts returns how many deleted and how many living sandboxes a coordinator knows, and how many journals it keeps in
// memory.
func (c *coordinator) counts() (deleted, living, journals int) {
	c.projection.mu.RLock()
	defer c.projection.mu.RUnlock()
	return len(c.projection.read.deleted), len(c.projection.read.sandboxes), len(c.projection.journals)
}

// A standby forgets the sandboxes that the leader purged.
func TestAStandbyForgetsWhatTheLeaderPurged(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond}
	leader, stop := d.inMemory(Config{Name: "c1", CleanupTTL: time.Second, Timing: timing})
	defer stop()
	d.eventually("c1 leads", leader.elected.Load)
	standby, stopStandby := d.inMemory(Config{Name: "c2", CleanupTTL: time.Second, Timing: timing})
	defer stopStandby()
	const n = 5
	for i := range n {
		d.create(fmt.Sprint("s", i), protocol.SandboxSpec{Image: "i"})
	}
	d.create("lives", protocol.SandboxSpec{Image: "i"})
	for i := range n {
		d.remove(fmt.Sprint("s", i))
	}
	for name, c := range map[string]*coordinator{"the leader": leader, "the standby": standby} {
		d.eventually(name+" has forgotten the purged sandboxes", func() bool {
			deleted, living, journals := c.counts()
			return deleted == 0 && living == 1 && journals == 1
		})
	}
	d.eventually("no deleted sandbox is listed", func() bool { return len(d.list("deleted")) == 0 })
}

// Clients can still read a deleted sandbox and its execs, list the sandbox, and repeat its requests. The sandbox's
// journal is not in memory, neither on the coordinator that folded its end nor on one that starts later.
func TestDeletedSandboxesAreReadOnRequest(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond}
	first, stop := d.inMemory(Config{Name: "c1", Timing: timing})
	const n = 40 // more than readsAtOnce
	labels := func(i int) map[string]string { return map[string]string{"odd": fmt.Sprint(i % 2)} }
	for i := range n {
		d.create(fmt.Sprint("s", i), protocol.SandboxSpec{Image: "i", Labels: labels(i)})
	}
	d.begin("s0")
	if r := d.exec("s0", "x1"); r.Error != nil {
		t.Fatal(r.Error)
	}
	d.work("s0", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: "x1", Inline: true}}}
	})
	for i := range n {
		d.remove(fmt.Sprint("s", i))
	}
	d.work("s0", func(*protocol.State) []protocol.Event { return []protocol.Event{{Kind: protocol.SandboxDeleted}} })
	d.eventually("the records of all deleted sandboxes are stored", func() bool {
		stored := 0
		err := d.conn.ReadEndedRecord(t.Context(), func(*jetstream.EndedRecord) { stored++ })
		return err == nil && stored == n
	})
	checkReads := func(c *coordinator) {
		t.Helper()
		d.eventually("no journal is kept", func() bool {
			deleted, living, journals := c.counts()
			return deleted == n && living == 0 && journals == 0
		})
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointGet, &protocol.Query{Sandbox: "s0"})
		if err != nil || reply.Sandbox.State != protocol.StateDeleted || reply.Sandbox.TotalExecs != 1 ||
			reply.Sandbox.Spec.Image != "i" {
			t.Errorf("a read of the sandbox returns %+v, %v", reply, err)
		}
		reply, err = d.conn.Query(t.Context(), "default", protocol.EndpointExec,
			&protocol.Query{Sandbox: "s0", Exec: "x1"})
		if err != nil || reply.Exec.State != protocol.ExecStateCancelled {
			t.Errorf("a read of its exec returns %+v, %v", reply, err)
		}
		if r := d.exec("s0", "x1"); r.Error != nil || r.Exec.ID != "x1" {
			t.Errorf("a repeat of the exec's request is answered with %+v", r)
		}
		if r := d.exec("s0", "x2"); r.Error == nil || r.Error.Reason != protocol.ReasonSandboxNotReady {
			t.Errorf("a new exec is answered with %+v", r)
		}
		if r := d.request(protocol.VerbCreate, "s1", "create-s1",
			protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i", Labels: labels(1)}}); r.Error != nil {
			t.Errorf("a repeat of the create's request is answered with %v", r.Error)
		}
		seen := map[string]bool{}
		for page := ""; ; {
			reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointList,
				&protocol.Query{States: []string{"deleted"}, Labels: labels(1), Limit: 7, Page: page})
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range reply.Sandboxes {
				if seen[b.ID] || b.Spec.Labels["odd"] != "1" || b.State != protocol.StateDeleted {
					t.Errorf("a sandbox is listed twice, or does not match the query: %+v", b)
				}
				seen[b.ID] = true
			}
			if page = reply.Next; page == "" {
				break
			}
		}
		if len(seen) != n/2 {
			t.Errorf("%d of %d sandboxes are listed", len(seen), n/2)
		}
		if _, _, journals := c.counts(); journals != 0 {
			t.Errorf("the journals of %d sandboxes are kept after a read", journals)
		}
	}
	checkReads(first)
	stop()
	second, stop := d.inMemory(Config{Name: "c2", Timing: timing})
	defer stop()
	checkReads(second)
}

// A coordinator reads the snapshots of an earlier version, and stores them in the present format.
func TestSnapshotsOfAnEarlierVersionAreHonoured(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.coordinator("c1", Timing{Snapshot: time.Hour})
	d.create("lives", protocol.SandboxSpec{Image: "i"})
	d.create("over", protocol.SandboxSpec{Image: "i"})
	d.remove("over")
	stop()
	for _, id := range []string{"lives", "over"} {
		j := d.conn.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: id, Writer: "c0"})
		if err := j.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.conn.WriteSnapshot(t.Context(), "default", id, j.Snapshot(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.conn.WriteCheckpoint(t.Context(), jetstream.Position{Record: d.last("over")}, 0); err != nil {
		t.Fatal(err)
	}
	second, stop := d.inMemory(Config{Name: "c2", Timing: Timing{Snapshot: 20 * time.Millisecond}})
	defer stop()
	if deleted, living, _ := second.counts(); deleted != 1 || living != 1 {
		t.Errorf("%d sandboxes are deleted and %d are living, want 1 and 1", deleted, living)
	}
	if all := d.list("deleted", "pending"); len(all) != 2 || all["over"] == nil || all["lives"] == nil {
		t.Errorf("the listed sandboxes are %v", all)
	}
	d.eventually("the snapshots have the present format", func() bool {
		stored := 0
		err := d.conn.ReadEndedRecord(t.Context(), func(*jetstream.EndedRecord) { stored++ })
		_, records := d.covered()
		return err == nil && stored == 1 && len(records) == 1 && records["lives"] != 0
	})
}

// The checkpoint of snapshots says up to which reservation every reserved id has a history. A new leader reads only the
// later reservations.
func TestANewLeaderReadsNoOldReservations(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond, Abandon: 200 * time.Millisecond}
	stop := d.coordinator("c1", timing)
	const n = 20
	for i := range n {
		d.create(fmt.Sprint("s", i), protocol.SandboxSpec{Image: "i"})
	}
	d.eventually("the checkpoint covers all reservations", func() bool {
		_, reserved, err := d.conn.Checkpoint(t.Context())
		return err == nil && reserved == n
	})
	stop()
	lost := protocol.Reservation{Request: "gone", Fingerprint: "f", Time: time.Now()}
	if before, err := d.conn.ReserveSandbox(t.Context(), "default", "lost", lost); err != nil || before != nil {
		t.Fatal(before, err)
	}
	defer d.coordinator("c2", timing)()
	d.eventually("an id that was reserved while nobody led, and not used, is ended", func() bool {
		b := d.list("failed")["lost"]
		return b != nil && b.Reason == protocol.ReasonAbandoned
	})
	d.raw(func(js natsjs.JetStream) error {
		stream, err := js.Stream(t.Context(), "KV_"+protocol.BucketIDs)
		if err != nil {
			return err
		}
		follows := 0
		list := stream.ListConsumers(t.Context())
		for consumer := range list.Info() {
			if consumer.NumPending == 0 && consumer.Config.OptStartSeq > n {
				follows++
			} else if consumer.Delivered.Stream > n {
				t.Errorf("a consumer of the registry started at message %d, before the checkpoint", consumer.Config.OptStartSeq)
			}
		}
		if follows != 1 {
			t.Errorf("%d consumers follow the registry, want 1", follows)
		}
		return list.Err()
	})
}
