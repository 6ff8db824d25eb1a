package coordinator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// clockOffBy returns a clock that is wrong by a duration.
func clockOffBy(by time.Duration) jetstream.Clock {
	return jetstream.Clock{Wall: func() time.Time { return time.Now().Round(0).Add(by) }}
}

// connectAt connects a process on a machine whose clock is wrong by a duration. The deployment must be provisioned.
func (d *deployment) connectAt(name string, by time.Duration) *jetstream.Conn {
	d.t.Helper()
	conn := d.connectAs(jetstream.Config{InProcess: d.server, Name: name, Clock: clockOffBy(by)})
	if err := conn.Open(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
	return conn
}

// scanned waits until the watchdog has made several scans: it creates sandboxes with a short time to live, one after
// another, and waits for the end of each.
func (d *deployment) scanned() {
	d.t.Helper()
	for i := range 4 {
		id := fmt.Sprint("scan-", i, "-", time.Now().UnixNano())
		d.create(id, protocol.SandboxSpec{Image: "i", TTL: protocol.Duration(time.Millisecond)})
		d.eventually("the watchdog ends a sandbox whose time to live has ended", func() bool {
			return d.handle(id).State == protocol.StateDeleted
		})
	}
}

// handle reads a sandbox's handle.
func (d *deployment) handle(id string) *protocol.Sandbox {
	d.t.Helper()
	reply, err := d.conn.Query(d.t.Context(), "default", protocol.EndpointGet, &protocol.Query{Sandbox: id})
	if err != nil {
		d.t.Fatal(err)
	}
	return reply.Sandbox
}

// append appends events to a sandbox's history, as a worker does.
func (d *deployment) append(conn *jetstream.Conn, sandbox string, events ...protocol.Event) {
	d.t.Helper()
	j := conn.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: sandbox, Writer: "w1"})
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := j.Do(ctx, func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return events, nil
	}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *deployment) execIs(sandbox, exec string) protocol.ExecState {
	d.t.Helper()
	reply, err := d.conn.Query(d.t.Context(), "default", protocol.EndpointExec,
		&protocol.Query{Sandbox: sandbox, Exec: exec})
	if err != nil {
		d.t.Fatal(err)
	}
	return reply.Exec.State
}

func TestNothingIsDecidedByTheClockOfAWorker(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{-15 * time.Minute, 15 * time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			defer d.coordinator("c1", Timing{Scan: 10 * time.Millisecond, Overdue: time.Nanosecond})()
			worker := d.connectAt("w1", by)
			for id, idle := range map[string]time.Duration{"a": 0, "idle": 10 * time.Minute} {
				d.create(id, protocol.SandboxSpec{Image: "i", IdleTTL: protocol.Duration(idle)})
				d.append(worker, id,
					protocol.Event{Kind: protocol.SandboxAssigned,
						Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}},
					protocol.Event{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}})
			}
			d.scanned()
			if b := d.handle("idle"); b.State != protocol.StateReady || b.Desired != protocol.StateReady {
				t.Errorf("a sandbox that was just used is %s, and should become %s: %s", b.State, b.Desired, b.Reason)
			}
			exec := protocol.ExecSpec{Command: []string{"sleep", "9"}, Timeout: protocol.Duration(30 * time.Second)}
			if r := d.request(protocol.VerbExec, "a", "x", protocol.Request{ExecID: "x", Exec: &exec}); r.Error != nil {
				t.Fatal(r.Error)
			}
			d.append(worker, "a", protocol.Event{Kind: protocol.ExecStarted,
				Exec: &protocol.ExecDetails{ID: "x", Boot: "b"}})
			d.scanned()
			if state := d.execIs("a", "x"); state != protocol.ExecStateRunning {
				t.Errorf("an exec that was just started is %s", state)
			}
		})
	}
}

func TestNothingIsDecidedByTheClockOfACoordinator(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{15 * 24 * time.Hour, -15 * 24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			stop := d.coordinator("c1", Timing{Scan: 10 * time.Millisecond})
			d.ready("stopped")
			if r := d.request(protocol.VerbStop, "stopped", "s", protocol.Request{}); r.Error != nil {
				t.Fatal(r.Error)
			}
			worker := d.connectAt("w1", 0)
			d.append(worker, "stopped", protocol.Event{Kind: protocol.SandboxStopped})
			d.create("queued", protocol.SandboxSpec{Image: "i", QueueTimeout: protocol.Duration(time.Hour),
				TTL: protocol.Duration(24 * time.Hour)})
			d.create("gone", protocol.SandboxSpec{Image: "i"})
			if r := d.request(protocol.VerbDelete, "gone", "g", protocol.Request{}); r.Error != nil {
				t.Fatal(r.Error)
			}
			stop()

			conn := d.connectAs(jetstream.Config{InProcess: d.server, Name: "c2", Clock: clockOffBy(by)})
			defer d.run(Config{Name: "c2", Conn: conn, Timing: Timing{Scan: 10 * time.Millisecond}})()
			d.scanned() // c2 accepts the sandboxes of this wait, so their times to live begin by c2's clock
			queued := d.handle("queued")
			for id, want := range map[string]protocol.SandboxState{"stopped": protocol.StateStopped,
				"queued": protocol.StatePending, "gone": protocol.StateDeleted} {
				b := d.handle(id)
				if b.State != want || b.HistoryPurged {
					t.Errorf("%s is %+v, want it to be %s", id, b, want)
				}
			}
			if time.Until(queued.ExpiresAt.Add(-24*time.Hour)).Abs() > time.Minute {
				t.Errorf("the queued sandbox expires at %s", queued.ExpiresAt)
			}
		})
	}
}

func TestAClockThatIsOffIsShown(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	conn := d.connectAs(jetstream.Config{InProcess: d.server, Name: "c1", Clock: clockOffBy(-time.Minute)})
	defer d.run(Config{Name: "c1", Conn: conn})()
	h := host("w1", 0)
	h.Instance = "i1"
	d.register(h)
	beat := func(skew time.Duration) {
		t.Helper()
		shown := protocol.Duration(skew)
		if err := d.conn.Beat(&protocol.Heartbeat{Worker: "w1", HostID: h.HostID, Instance: "i1", Healthy: true,
			Skew: &shown}); err != nil {
			t.Fatal(err)
		}
	}
	shownHost := func() *protocol.Host {
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointHosts, &protocol.Query{Limit: 10})
		if err != nil || len(reply.Hosts) != 1 {
			return &protocol.Host{}
		}
		return reply.Hosts[0]
	}
	for _, x := range []struct {
		skew time.Duration
		off  bool
	}{{4 * time.Second, false}, {-2 * time.Minute, true}, {90 * time.Second, true}, {-4 * time.Second, false}} {
		d.eventually("the skew is shown", func() bool {
			beat(x.skew)
			shown := shownHost()
			return shown.Skew != nil && shown.Skew.Std() == x.skew && shown.ClockOff == x.off
		})
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointPing, &protocol.Query{})
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(reply.Ping.Clocks, "\n")
		if !strings.Contains(said, "coordinator c1 is 1m0s behind") || strings.Contains(said, "worker w1") != x.off {
			t.Errorf("with a skew of %s, ping reports: %s", x.skew, said)
		}
		if reply.Ping.Skew == nil || (reply.Ping.Skew.Std()+time.Minute).Abs() > time.Second {
			t.Errorf("the coordinator's skew is %v", reply.Ping.Skew)
		}
	}
}
