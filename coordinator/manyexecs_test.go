package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// acceptedBefore appends many accepted execs, as an older version without a limit of active execs did.
func (d *deployment) acceptedBefore(sandbox string, n int) {
	d.t.Helper()
	batches, err := d.conn.HistoryTail(d.t.Context(), "default", sandbox, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	b := batches[len(batches)-1]
	next, record := b.Last()+1, b.Record
	for i := 0; i < n; {
		b := &protocol.Batch{Version: protocol.Version, Tenant: "default", Sandbox: sandbox, ID: fmt.Sprint("old-", i),
			Writer: "c0"}
		for ; i < n && len(b.Events) < 1000; i++ {
			b.Events = append(b.Events, protocol.Event{Sequence: next, Kind: protocol.ExecAccepted, Time: time.Now(),
				State: protocol.StateReady,
				Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", i), State: protocol.ExecStateAccepted,
					Spec: &protocol.ExecSpec{Command: []string{"true"}}}})
			next++
		}
		if record, err = d.conn.Append(d.t.Context(), b, record); err != nil {
			d.t.Fatal(err)
		}
	}
}

func TestASandboxWithThousandsOfExecsFailsWithItsHost(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond, Seize: 20 * time.Millisecond})()
	d.register(host("w1", 0))
	d.create("a", protocol.SandboxSpec{Image: "i", OnHostLoss: protocol.OnHostLossFail})
	d.eventually("the sandbox is assigned", func() bool { return d.list()["a"].Assigned })
	d.work("a", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}}}
	})
	d.acceptedBefore("a", 6000)
	d.eventually("the coordinator knows all execs", func() bool { return d.list()["a"].ActiveExecs == 6000 })
	d.leave("w1")
	d.eventually("the host is lost", func() bool { return d.hostIs("w1", protocol.HostLost) })
	began := time.Now()
	d.eventually("the sandbox fails", func() bool { b := d.list("failed")["a"]; return b != nil && b.ActiveExecs == 0 })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("failing the sandbox took %s", took)
	}
}

// A host is lost, and a sandbox with thousands of execs waits until the host comes back. The execs that were not
// started are ended.
func TestThousandsOfExecsOfALostHostEnd(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.run(Config{Name: "c1", Timing: Timing{Scan: 20 * time.Millisecond, Overdue: 20 * time.Millisecond},
		Assets: jetstream.Assets{LockTTL: time.Second}})()
	d.ready("a")
	d.acceptedBefore("a", 3000)
	d.eventually("all execs end", func() bool { b := d.list()["a"]; return b.TotalExecs == 3000 && b.ActiveExecs == 0 })
	if b := d.list()["a"]; b.State != protocol.StateReady {
		t.Errorf("the sandbox is %s", b.State)
	}
}

func TestMoreActiveExecsThanASandboxMayHaveAreRefused(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.run(Config{Name: "c1", MaxActiveExecs: 3})()
	d.ready("a")
	for i := range 3 {
		if r := d.exec("a", fmt.Sprint("x", i)); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	r := d.exec("a", "x3")
	if r.Error == nil || r.Error.Code != protocol.ResourceExhausted || r.Error.Reason != protocol.ReasonTooManyExecs {
		t.Errorf("the fourth exec is answered with %+v", r)
	}
	if r := d.exec("a", "x0"); r.Error != nil { // a repeated request
		t.Error(r.Error)
	}
	d.work("a", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: "x1", Inline: true}}}
	})
	if r := d.exec("a", "x4"); r.Error != nil {
		t.Error(r.Error)
	}
	for _, n := range []int{-1, protocol.MaxActiveExecs + 1} {
		err := Run(t.Context(), Config{Name: "c2", Conn: d.conn, MaxActiveExecs: n})
		if e := protocol.AsError(err); e == nil || e.Field != "coordinator.max_active_execs" {
			t.Errorf("with MaxActiveExecs %d, Run returns %v", n, err)
		}
	}
}
