package jetstream_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// snapshots reads all snapshots of a tenant. Unusable snapshots are nil.
func snapshots(t testing.TB, c *jetstream.Conn, tenant string) (from uint64, all map[string]*jetstream.Snapshot) {
	t.Helper()
	all = map[string]*jetstream.Snapshot{}
	from, err := c.ReadSnapshots(t.Context(), func(of, sandbox string, s *jetstream.Snapshot) {
		if of == tenant {
			all[sandbox] = s
		}
	})
	must(t, err)
	return from, all
}

// The write of an old leader comes after the write of the next leader.
func TestALateSnapshotDoesNotReplaceANewerOne(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		readySandbox(t, c, d.tenant, "s1")
		j := journal(c, d.tenant, "s1", "k1")
		accept(t, j, "x1")
		old := j.Snapshot()
		was, err := c.WriteSnapshot(ctx, d.tenant, "s1", j.Snapshot(), 0)
		must(t, err)
		at := j.Position()
		accept(t, j, "x2")
		next, err := c.WriteSnapshot(ctx, d.tenant, "s1", j.Snapshot(), 0)
		must(t, err)
		if next <= was {
			t.Fatalf("the next revision is %d, want more than %d", next, was)
		}
		for _, revision := range []uint64{was, 0} {
			late := *old
			if _, err := c.WriteSnapshot(ctx, d.tenant, "s1", &late, revision); err != nil {
				t.Fatal(err)
			}
		}
		must(t, c.WriteCheckpoint(ctx, j.Position(), 0))
		must(t, c.WriteCheckpoint(ctx, at, 0))
		from, all := snapshots(t, c, d.tenant)
		if s := all["s1"]; s == nil || s.State.Execs["x2"] == nil {
			t.Errorf("the late snapshot replaced the newer one: %+v", s)
		}
		if len(d.servers) == 1 && from != j.Position().Record+1 {
			t.Errorf("the log is to be followed from record %d, want %d", from, j.Position().Record+1)
		}
		// A page of exec ids keeps the ids that another process stored, in the order in which it stored them.
		ids := func() (got []uint64) {
			must(t, c.ReadExecIDs(ctx, func(tenant, _ string, _ int, hashes []uint64) {
				if tenant == d.tenant {
					got = hashes
				}
			}))
			return got
		}
		first, err := c.WriteExecIDs(ctx, d.tenant, "s1", 0, []uint64{1, 2}, 0)
		must(t, err)
		_, err = c.WriteExecIDs(ctx, d.tenant, "s1", 0, []uint64{1, 2, 3, 4}, first)
		must(t, err)
		for _, late := range [][]uint64{{1, 2, 5}, {1}, {}} {
			_, err = c.WriteExecIDs(ctx, d.tenant, "s1", 0, late, first)
			must(t, err)
		}
		if got := ids(); !reflect.DeepEqual(got, []uint64{1, 2, 3, 4, 5}) {
			t.Errorf("the page has %v", got)
		}
		// Removed snapshots stay removed.
		must(t, c.PurgeHistory(ctx, d.tenant, "s1"))
		_, err = c.WriteSnapshot(ctx, d.tenant, "s1", old, was)
		must(t, err)
		if _, all := snapshots(t, c, d.tenant); len(all) != 0 {
			t.Errorf("a snapshot was stored for a purged sandbox: %v", all)
		}
	})
}

func TestASnapshotLargerThanAMessageIsStoredWithoutItsState(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	readySandbox(t, c, d.tenant, "s1")
	j := journal(c, d.tenant, "s1", "k1")
	for i := range 12 {
		_, err := j.Do(ctx, func(*protocol.State, time.Time) ([]protocol.Event, error) {
			return []protocol.Event{{Kind: protocol.ExecAccepted, Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", i),
				Spec: &protocol.ExecSpec{Command: []string{"true"}, Stdin: make([]byte, 100<<10)}}}}, nil
		})
		must(t, err)
	}
	_, err := c.WriteSnapshot(ctx, d.tenant, "s1", j.Snapshot(), 0)
	must(t, err)
	must(t, c.WriteCheckpoint(ctx, j.Position(), 0))
	from, all := snapshots(t, c, d.tenant)
	if s, there := all["s1"]; !there || s != nil || from != j.Position().Record+1 {
		t.Errorf("the log is to be followed from record %d, and the snapshot is %+v", from, s)
	}
}

func TestASnapshotOfAnotherFoldVersionIsNotUsed(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	readySandbox(t, c, d.tenant, "s1")
	j := journal(c, d.tenant, "s1", "k1")
	accept(t, j, "x1")
	for fold, usable := range map[int]bool{0: false, protocol.FoldVersion: true, protocol.FoldVersion + 1: false} {
		t.Run(fmt.Sprint(fold), func(t *testing.T) {
			s := j.Snapshot()
			s.Fold = fold
			// An earlier version of the coordinator writes the snapshot like this, without an expected revision.
			m := &jetstream.Snapshot{Version: s.Version, Record: s.Record, State: s.State, Fold: fold}
			d.put(t, protocol.BucketSandboxes, d.tenant+".s1", protocol.Encode(m))
			must(t, c.WriteCheckpoint(ctx, j.Position(), 0))
			from, all := snapshots(t, c, d.tenant)
			if got, there := all["s1"]; !there || (got != nil) != usable || from != s.Record+1 {
				t.Errorf("the log is to be followed from record %d, and the snapshot is %+v", from, got)
			}
		})
	}
	// A snapshot of an older fold version is replaced even if the history has not grown.
	s := j.Snapshot()
	s.Fold = 0
	d.put(t, protocol.BucketSandboxes, d.tenant+".s1", protocol.Encode(s))
	_, err := c.WriteSnapshot(ctx, d.tenant, "s1", j.Snapshot(), 0)
	must(t, err)
	if _, all := snapshots(t, c, d.tenant); all["s1"] == nil {
		t.Error("the snapshot of an older fold version was not replaced")
	}
}

func TestSnapshotsAheadOfTheLogAreIgnored(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	for _, sandbox := range []string{"s1", "s2", "s3"} {
		readySandbox(t, c, d.tenant, sandbox)
	}
	put := func(sandbox string, ahead uint64, batch string) *jetstream.Snapshot {
		j := journal(c, d.tenant, sandbox, "k1")
		must(t, j.Refresh(ctx))
		s := j.Snapshot()
		s.Record += ahead
		if batch != "" {
			s.Batch = batch
		}
		d.put(t, protocol.BucketSandboxes, d.tenant+"."+sandbox, protocol.Encode(s))
		return s
	}
	good := put("s1", 0, "")
	put("s2", 0, "another") // the log has another batch at this record
	put("s3", 9, "")        // the log ends before this record
	checkpoint := &jetstream.Snapshot{Version: 1, Record: good.Record, Batch: good.Batch}
	d.put(t, protocol.BucketSandboxes, "_checkpoint", protocol.Encode(checkpoint))
	from, all := snapshots(t, c, d.tenant)
	if from != good.Record+1 || len(all) != 3 || all["s1"] == nil || all["s2"] != nil || all["s3"] != nil {
		t.Errorf("the log is to be followed from record %d, and the snapshots are %+v", from, all)
	}
	// A snapshot of a lost history is replaced, even if its record is higher.
	j := journal(c, d.tenant, "s3", "k1")
	must(t, j.Refresh(ctx))
	_, err := c.WriteSnapshot(ctx, d.tenant, "s3", j.Snapshot(), 0)
	must(t, err)
	if _, all := snapshots(t, c, d.tenant); all["s3"] == nil {
		t.Error("the snapshot of the lost history was not replaced")
	}
	for what, checkpoint := range map[string]jetstream.Snapshot{
		"ahead of the log":   {Version: 1, Record: 99, Batch: good.Batch},
		"of another history": {Version: 1, Record: good.Record, Batch: "another"},
	} {
		d.put(t, protocol.BucketSandboxes, "_checkpoint", protocol.Encode(&checkpoint))
		if from, all := snapshots(t, c, d.tenant); from != 1 || len(all) != 0 {
			t.Errorf("a checkpoint %s: the log is to be followed from record %d, and the snapshots are %+v", what, from, all)
		}
	}
	must(t, c.WriteCheckpoint(ctx, jetstream.Position{Record: good.Record, Batch: good.Batch}, 0))
	if from, _ := snapshots(t, c, d.tenant); from != good.Record+1 {
		t.Errorf("the log is to be followed from record %d, want %d", from, good.Record+1)
	}
}

// put writes a key without an expected revision.
func (d *deployment) put(t testing.TB, bucket, key string, value []byte) {
	t.Helper()
	_, err := d.raw(t).Request("$KV."+bucket+"."+key, value, 5*time.Second)
	must(t, err)
}
