package coordinator

import (
	"fmt"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// inMemory runs a coordinator and returns it too.
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

// counts returns how many deleted (over) and how many living sandboxes a coordinator knows, and how many folds it keeps
// in memory.
func (c *coordinator) counts() (over, living, folds int) {
	c.projection.mu.RLock()
	defer c.projection.mu.RUnlock()
	return len(c.projection.read.deleted), len(c.projection.read.sandboxes), len(c.projection.journals)
}

// A standby forgets what the leader purged, and does not purge it again when it takes over.
func TestAStandbyForgetsWhatTheLeaderPurged(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond}
	leader, stop := d.inMemory(Config{Name: "c1", CleanupTTL: time.Second, Timing: timing})
	defer stop()
	d.eventually("it leads", leader.elected.Load)
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
			over, living, folds := c.counts()
			return over == 0 && living == 1 && folds == 1
		})
	}
	d.eventually("it was purged", func() bool { return len(d.list("deleted")) == 0 })
}

// A deleted sandbox is still found by its id, with its execs, in the list, and by repeated requests. Neither the
// coordinator that saw its end nor one that starts holds a fold of it in memory.
func TestDeletedSandboxesAreReadOnRequest(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond}
	first, stop := d.inMemory(Config{Name: "c1", Timing: timing})
	const n = 40 // more than the coordinator reads at once
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
	d.eventually("what is over is stored", func() bool {
		stored := 0
		err := d.conn.ReadEndedRecord(t.Context(), func(*jetstream.EndedRecord) { stored++ })
		return err == nil && stored == n
	})
	look := func(c *coordinator) {
		t.Helper()
		d.eventually("no fold is kept", func() bool {
			over, living, folds := c.counts()
			return over == n && living == 0 && folds == 0
		})
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointGet, &protocol.Query{Sandbox: "s0"})
		if err != nil || reply.Sandbox.State != protocol.StateDeleted || reply.Sandbox.TotalExecs != 1 ||
			reply.Sandbox.Spec.Image != "i" {
			t.Errorf("get: %+v, %v", reply, err)
		}
		reply, err = d.conn.Query(t.Context(), "default", protocol.EndpointExec,
			&protocol.Query{Sandbox: "s0", Exec: "x1"})
		if err != nil || reply.Exec.State != protocol.ExecStateCancelled {
			t.Errorf("its exec: %+v, %v", reply, err)
		}
		if r := d.exec("s0", "x1"); r.Error != nil || r.Exec.ID != "x1" {
			t.Errorf("the exec's request again: %+v", r)
		}
		if r := d.exec("s0", "x2"); r.Error == nil || r.Error.Reason != protocol.ReasonSandboxNotReady {
			t.Errorf("a new exec: %+v", r)
		}
		if r := d.request(protocol.VerbCreate, "s1", "create-s1",
			protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i", Labels: labels(1)}}); r.Error != nil {
			t.Errorf("the create's request again: %v", r.Error)
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
					t.Errorf("listed, perhaps again: %+v", b)
				}
				seen[b.ID] = true
			}
			if page = reply.Next; page == "" {
				break
			}
		}
		if len(seen) != n/2 {
			t.Errorf("%d of %d are listed", len(seen), n/2)
		}
		if _, _, folds := c.counts(); folds != 0 {
			t.Errorf("the folds of %d sandboxes are kept after a read", folds)
		}
	}
	look(first)
	stop()
	second, stop := d.inMemory(Config{Name: "c2", Timing: timing})
	defer stop()
	look(second)
}

// A coordinator reads the snapshots of an earlier version, and stores them again in the present form.
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
	if over, living, _ := second.counts(); over != 1 || living != 1 {
		t.Errorf("%d are over, %d live", over, living)
	}
	if all := d.list("deleted", "pending"); len(all) != 2 || all["over"] == nil || all["lives"] == nil {
		t.Errorf("listed: %v", all)
	}
	d.eventually("the snapshots are in the present form", func() bool {
		stored := 0
		err := d.conn.ReadEndedRecord(t.Context(), func(*jetstream.EndedRecord) { stored++ })
		_, records := d.covered()
		return err == nil && stored == 1 && len(records) == 1 && records["lives"] != 0
	})
}

// A new leader reads only the reservations made after the checkpoint: every id reserved before it has a history.
func TestANewLeaderReadsNoOldReservations(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond, Abandon: 200 * time.Millisecond}
	stop := d.coordinator("c1", timing)
	const n = 20
	for i := range n {
		d.create(fmt.Sprint("s", i), protocol.SandboxSpec{Image: "i"})
	}
	d.eventually("the checkpoint covers all of the registry", func() bool {
		_, reserved, err := d.conn.Checkpoint(t.Context())
		return err == nil && reserved == n
	})
	stop()
	lost := protocol.Reservation{Request: "gone", Fingerprint: "f", Time: time.Now()}
	if before, err := d.conn.ReserveSandbox(t.Context(), "default", "lost", lost); err != nil || before != nil {
		t.Fatal(before, err)
	}
	defer d.coordinator("c2", timing)()
	d.eventually("an unused id that was reserved without a leader is ended", func() bool {
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
				t.Errorf("a consumer of the registry began at %d", consumer.Config.OptStartSeq)
			}
		}
		if follows != 1 {
			t.Errorf("%d consumers follow the registry", follows)
		}
		return list.Err()
	})
}
