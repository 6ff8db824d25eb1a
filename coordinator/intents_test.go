package coordinator

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// wants changes the intent for a worker's host, as an operator does.
func (d *deployment) wants(h *protocol.Host, change func(*protocol.OperatorIntent)) {
	d.t.Helper()
	if _, err := d.conn.ChangeOperatorIntent(d.t.Context(), h.HostID, func(w *protocol.OperatorIntent) error {
		w.Worker = h.Worker
		change(w)
		return nil
	}); err != nil {
		d.t.Fatal(err)
	}
}

func forgetIt(w *protocol.OperatorIntent) { w.Forget = &protocol.HostForget{Since: time.Now()} }

// readyOn creates a sandbox, waits until it is assigned, and makes it ready.
func (d *deployment) readyOn(id string, s protocol.SandboxSpec) {
	d.t.Helper()
	d.create(id, s)
	d.eventually(id+" is assigned", func() bool { return d.list()[id].Assigned })
	d.isReady(id)
}

// isReady makes an assigned sandbox ready, as its worker does.
func (d *deployment) isReady(id string) {
	d.t.Helper()
	d.work(id, func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}}}
	})
	d.eventually(id+" is ready", func() bool { return d.list()[id].State == protocol.StateReady })
}

// host returns a host from the list of hosts, or nil if it is not listed.
func (d *deployment) host(worker string) *protocol.Host {
	d.t.Helper()
	reply, err := d.conn.Query(d.t.Context(), "default", protocol.EndpointHosts, &protocol.Query{Limit: 10})
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(reply.Hosts, func(h *protocol.Host) bool { return h.Worker == worker })
	if i < 0 {
		return nil
	}
	return reply.Hosts[i]
}

// everything lists all states of sandboxes.
var everything = []string{"pending", "ready", "stopped", "failed", "deleting", "deleted"}

// A host that does not come back has sandboxes in every state. Unless the host is forgotten, their deletes and stops
// never end.
func TestForgettingAHostEndsItsSandboxes(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Seize: 20 * time.Millisecond}
	stop := d.coordinator("c1", timing)
	defer func() { stop() }()
	h := host("w1", 0)
	d.register(h)
	for _, id := range []string{"runs", "stops", "stopped", "resumes", "deletes", "failed"} {
		d.readyOn(id, protocol.SandboxSpec{Image: "i"})
	}
	ask := func(verb, id string, r protocol.Request) {
		t.Helper()
		if reply := d.request(verb, id, verb+"-"+id, r); reply.Error != nil {
			t.Fatal(verb, id, reply.Error)
		}
	}
	ask(protocol.VerbExec, "runs", protocol.Request{ExecID: "x", Exec: &protocol.ExecSpec{Command: []string{"true"}}})
	for _, id := range []string{"stopped", "resumes"} {
		ask(protocol.VerbStop, id, protocol.Request{})
		d.work(id, func(*protocol.State) []protocol.Event { return []protocol.Event{{Kind: protocol.SandboxStopped}} })
	}
	ask(protocol.VerbResume, "resumes", protocol.Request{})
	d.work("failed", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.SandboxFailed, Reason: "x"}}
	})
	for _, id := range []string{"never-made", "moves"} {
		d.create(id, protocol.SandboxSpec{Image: "i"})
		d.eventually(id+" is assigned", func() bool { return d.list()[id].Assigned })
	}
	d.leave("w1")
	d.eventually("the host is lost", func() bool { return d.hostIs("w1", protocol.HostLost) })
	ask(protocol.VerbStop, "stops", protocol.Request{})
	ask(protocol.VerbDelete, "deletes", protocol.Request{})
	ask(protocol.VerbDelete, "never-made", protocol.Request{})
	on := d.host("w1")
	if on == nil || on.Holds["deleting"] != 2 || on.Holds["ready"] != 2 || on.Holds["failed"] != 1 || on.Execs != 1 {
		t.Fatalf("the host is listed as %+v", on)
	}
	d.wants(h, forgetIt)
	d.eventually("its sandboxes have ended, except the one that is placed on another host", func() bool {
		all := d.list(everything...)
		for id, state := range map[string]protocol.SandboxState{
			"runs": protocol.StateFailed, "stops": protocol.StateFailed, "stopped": protocol.StateFailed,
			"resumes": protocol.StateFailed, "failed": protocol.StateFailed, "moves": protocol.StatePending,
			"deletes": protocol.StateDeleted, "never-made": protocol.StateDeleted,
		} {
			b := all[id]
			if b == nil || b.State != state || state == protocol.StateFailed && id != "failed" &&
				b.Reason != protocol.ReasonHostForgotten || b.ActiveExecs > 0 {
				return false
			}
		}
		return true
	})
	if h := d.host("w1"); h != nil {
		t.Errorf("the forgotten host is listed: %+v", h)
	}
	ask(protocol.VerbDelete, "failed", protocol.Request{})
	d.eventually("a sandbox that failed on the host can be deleted",
		func() bool { return d.list(everything...)["failed"].State == protocol.StateDeleted })
	stop()
	stop = d.coordinator("c2", timing)
	d.eventually("another coordinator knows the sandboxes", func() bool { return d.list(everything...)["runs"] != nil })
	if h := d.host("w1"); h != nil {
		t.Errorf("after a restart the forgotten host is listed: %+v", h)
	}
	ask(protocol.VerbDelete, "runs", protocol.Request{})
	d.eventually("a sandbox that failed on the host can be deleted after a restart",
		func() bool { return d.list(everything...)["runs"].State == protocol.StateDeleted })

	h.Instance, h.Token = "i2", 1<<40
	d.register(h)
	d.eventually("the host is ready after it came back", func() bool { return d.hostIs("w1", protocol.HostReady) })
	d.eventually("the intent to forget the host is removed", func() bool {
		w, err := d.conn.OperatorIntent(t.Context(), h.HostID)
		return err == nil && w.Empty()
	})
	if b := d.list()["moves"]; b.State != protocol.StatePending || b.HostID != h.HostID {
		t.Errorf("the sandbox that was being created there is %s on host %q", b.State, b.HostID)
	}
}

// A host is forgotten only if its lock is free.
func TestAHostThatIsAliveIsNotForgotten(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.coordinator("c1", Timing{Scan: 20 * time.Millisecond}) // must not lose the silent host
	h := host("w1", 0)
	lease, err := d.conn.AcquireHost(t.Context(), h.HostID, jetstream.Holder{Name: "w1", Instance: "i-w1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.Token = lease.Token()
	d.register(h)
	d.readyOn("a", protocol.SandboxSpec{Image: "i"})
	stop()
	defer d.coordinator("c2", Timing{Scan: 20 * time.Millisecond, Suspect: 300 * time.Millisecond, Seize: time.Hour})()
	d.wants(h, forgetIt)
	d.eventually("the host is suspect", func() bool { return d.hostIs("w1", protocol.HostSuspect) })
	d.hostsScanned() // the host is not lost, since its lock is held
	w, err := d.conn.OperatorIntent(t.Context(), h.HostID)
	if err != nil || w.Forget.Done || d.list()["a"].State != protocol.StateReady {
		t.Errorf("the intent is %+v, %v, and the host's sandbox is %s", w.Forget, err, d.list()["a"].State)
	}
	beating, endBeats := context.WithCancel(t.Context())
	defer endBeats()
	go func() {
		for beating.Err() == nil {
			beat := &protocol.Heartbeat{Worker: "w1", HostID: h.HostID, Instance: h.Instance, Healthy: true}
			if err := d.conn.Beat(beat); err != nil && beating.Err() == nil {
				t.Error(err)
			}
			backoff.Sleep(beating, 50*time.Millisecond)
		}
	}()
	d.wants(h, forgetIt)
	d.eventually("the intent is refused, since the host sends heartbeats", func() bool {
		w, err := d.conn.OperatorIntent(t.Context(), h.HostID)
		return err == nil && w.Forget != nil && w.Forget.Refused != nil && !w.Forget.Done
	})
	if b := d.list()["a"]; b.State != protocol.StateReady {
		t.Errorf("the host's sandbox is %s: %v", b.State, b.Error)
	}
}

func TestALostHostIsForgottenByAge(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.run(Config{Name: "c1", Timing: Timing{Scan: 20 * time.Millisecond, Seize: 20 * time.Millisecond},
		HostForgetAfter: 300 * time.Millisecond})()
	d.register(host("w1", 0))
	d.readyOn("a", protocol.SandboxSpec{Image: "i"})
	d.leave("w1")
	d.eventually("the host's sandbox has failed", func() bool {
		b := d.list(everything...)["a"]
		return b != nil && b.Reason == protocol.ReasonHostForgotten
	})
}

// The intent to forget a host is removed once the host has no sandboxes any more.
func TestTheRecordOfAForgottenHostIsRemoved(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond, Seize: 20 * time.Millisecond,
		Keep: time.Millisecond})()
	h := host("w1", 0)
	d.register(h)
	d.readyOn("a", protocol.SandboxSpec{Image: "i"})
	d.leave("w1")
	d.eventually("the host is lost", func() bool { return d.hostIs("w1", protocol.HostLost) })
	d.wants(h, forgetIt)
	d.eventually("the host's sandbox has failed",
		func() bool { return d.list(everything...)["a"].Reason == protocol.ReasonHostForgotten })
	kept := func() bool {
		w, err := d.conn.OperatorIntent(t.Context(), h.HostID)
		return err != nil || !w.Empty()
	}
	d.hostsScanned()
	if !kept() {
		t.Error("the intent is removed while the host still has a sandbox")
	}
	if r := d.request(protocol.VerbDelete, "a", "rq-delete", protocol.Request{}); r.Error != nil {
		t.Fatal(r.Error)
	}
	d.eventually("the intent is removed", func() bool { return !kept() })
	d.hostsScanned()
	if h := d.host("w1"); h != nil {
		t.Errorf("the forgotten host is listed again: %+v", h)
	}
}

func TestACordonedHostGetsNoNewWork(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond}
	stop := d.coordinator("c1", timing)
	h := host("w1", 0)
	d.register(h)
	d.readyOn("runs", protocol.SandboxSpec{Image: "i"})
	d.wants(h, func(w *protocol.OperatorIntent) { w.Cordoned = true })
	d.eventually("the host is shown as cordoned", func() bool { h := d.host("w1"); return h != nil && h.Cordoned })
	stop()
	defer d.coordinator("c2", timing)() // the host stays cordoned after a restart
	d.create("waits", protocol.SandboxSpec{Image: "i"})
	d.eventually("the explanation of the waiting sandbox names the cordoned host", func() bool {
		r, err := d.conn.Query(t.Context(), "default", protocol.EndpointExplain, &protocol.Query{Sandbox: "waits"})
		return err == nil && len(r.Explain.Hosts) == 1 && r.Explain.Hosts[0].Reason == "the host is cordoned"
	})
	if b := d.list()["waits"]; b.Assigned || d.list()["runs"].State != protocol.StateReady {
		t.Errorf("the waiting sandbox is assigned: %v; the running one is %s", b.Assigned, d.list()["runs"].State)
	}
	d.wants(h, func(w *protocol.OperatorIntent) { w.Cordoned = false })
	d.eventually("the waiting sandbox is assigned once the host is not cordoned any more",
		func() bool { return d.list()["waits"].Assigned })
}

// A sandbox leaves a drained host in the way that its on_host_loss says.
func TestSandboxesLeaveADrainedHost(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond})()
	h := host("w1", 0)
	d.register(h)
	policies := []string{protocol.OnHostLossWait, protocol.OnHostLossFail, protocol.OnHostLossReplace}
	for _, policy := range policies {
		d.readyOn(policy, protocol.SandboxSpec{Image: "i", OnHostLoss: policy})
	}
	d.wants(h, func(w *protocol.OperatorIntent) {
		w.Cordoned, w.Drain = true, &protocol.HostDrain{Since: time.Now()}
	})
	d.eventually("the host is shown as drained", func() bool { h := d.host("w1"); return h != nil && h.Drain != nil })
	d.hostsScanned() // the sandboxes on the drained host are due for inspection
	d.scanned()
	for _, policy := range policies {
		if b := d.list()[policy]; b.State != protocol.StateReady || b.Desired != protocol.StateReady {
			t.Errorf("while no other host takes it, sandbox %s is %s, and should become %s", policy, b.State, b.Desired)
		}
	}
	d.register(host("w2", 0))
	d.eventually("the replaceable sandbox is assigned to another host", func() bool {
		b := d.list()[protocol.OnHostLossReplace]
		return b.Generation == 2 && b.HostID == "h-w2" && b.State == protocol.StatePending
	})
	d.isReady(protocol.OnHostLossReplace)
	d.wants(h, func(w *protocol.OperatorIntent) {
		w.Drain = &protocol.HostDrain{Since: time.Now(), Deadline: time.Now()}
	})
	d.eventually("the other sandboxes end after the deadline", func() bool {
		all := d.list(everything...)
		waits, fails := all[protocol.OnHostLossWait], all[protocol.OnHostLossFail]
		return waits.Desired == protocol.StateStopped && waits.Reason == protocol.ReasonDrained &&
			fails.State == protocol.StateFailed && fails.Reason == protocol.ReasonDrained
	})
}

// One scan moves no more sandboxes than fit on other hosts, even if it calls fitsElsewhere twice for one sandbox.
func TestADrainMovesSandboxesThatFitElsewhere(t *testing.T) {
	drained, other := host("drained", 0), host("other", 8)
	drained.Drain = &protocol.HostDrain{}
	m := &moves{}
	m.beginScan([]*protocol.Host{drained, other}, nil)
	for i, want := range []bool{true, true, true, true, false} {
		b := &protocol.Sandbox{State: protocol.StatePending, Spec: protocol.SandboxSpec{Memory: 1 << 30, CPU: 1}}
		b.ID, b.State, b.HostID = []string{"a", "a", "b", "b", "c"}[i], protocol.StateReady, drained.HostID
		if got := m.fitsElsewhere(b, time.Now()); got != want {
			t.Errorf("question %d: sandbox %s fits on another host: %v, want %v", i, b.ID, got, want)
		}
	}
}

// The sandbox of a lost host is created again on another host. Execs that ran have ended. Execs that were not started
// may run on the new host.
func TestASandboxOfALostHostIsReplacedOnAnotherHost(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond, Seize: 20 * time.Millisecond})()
	d.register(host("w1", 0))
	d.readyOn("a", protocol.SandboxSpec{Image: "i", OnHostLoss: protocol.OnHostLossReplace})
	for _, x := range []string{"ran", "waits"} {
		if r := d.request(protocol.VerbExec, "a", "exec-"+x,
			protocol.Request{ExecID: x, Exec: &protocol.ExecSpec{Command: []string{"true"}}}); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	d.work("a", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: "ran", Boot: "b"}}}
	})
	notified := make(chan string, 100)
	stop, err := d.conn.Work("w1", func(_, sandbox string, b *protocol.Batch) {
		if b != nil && b.Events[len(b.Events)-1].Kind == protocol.SandboxReplaced {
			notified <- sandbox
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	d.leave("w1")
	d.eventually("the sandbox waits for a host", func() bool {
		b := d.list()["a"]
		return b.State == protocol.StatePending && !b.Assigned && b.Reason == protocol.ReasonHostLost &&
			b.HostID == "" && b.ActiveExecs == 1
	})
	d.register(host("w2", 0))
	d.eventually("the sandbox is assigned to another host",
		func() bool { b := d.list()["a"]; return b.HostID == "h-w2" && b.Generation == 2 })
	d.isReady("a")
	select {
	case <-notified:
	case <-time.After(10 * time.Second):
		t.Error("the previous worker is not notified")
	}
	exec := func(id string) *protocol.Exec {
		t.Helper()
		r, err := d.conn.Query(t.Context(), "default", protocol.EndpointExec, &protocol.Query{Sandbox: "a", Exec: id})
		if err != nil {
			t.Fatal(err)
		}
		return r.Exec
	}
	if x := exec("ran"); x.State != protocol.ExecStateFailed || x.Reason != protocol.ReasonHostLost ||
		!strings.Contains(x.Error.Message, "interrupted") {
		t.Errorf("the exec that ran is %s: %v", x.State, x.Error)
	}
	if x := exec("waits"); x.State != protocol.ExecStateAccepted {
		t.Errorf("the exec that was not started is %s: %v", x.State, x.Error)
	}
}

// The execs of a lost host are inspected before its sandboxes are replaced. Execs that will run on another host are not
// ended.
func TestAnExecThatWillRunOnAnotherHostIsNotEnded(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]protocol.ExecState{protocol.OnHostLossReplace: protocol.ExecStateAccepted,
		protocol.OnHostLossWait: protocol.ExecStateFailed} {
		d := newDeployment(t)
		stop := d.coordinator("c1", Timing{})
		d.register(host("w1", 0))
		d.readyOn("a", protocol.SandboxSpec{Image: "i", OnHostLoss: policy})
		if r := d.exec("a", "x"); r.Error != nil {
			t.Fatal(r.Error)
		}
		stop()
		c := &coordinator{conn: d.conn, projection: newProjection(d.conn, slog.New(slog.DiscardHandler), "c1", 0)}
		k := key{Tenant: "default", ID: "a"}
		j := c.projection.journal(k)
		err := j.Refresh(t.Context())
		b := c.projection.read.get(k)
		if err == nil {
			err = newWatchdog(&leader{coordinator: c}).endLateExecs(t.Context(), k, b,
				&protocol.Host{HostID: b.HostID, State: protocol.HostLost}, moment{time.Now(),
					time.Now().Add(time.Minute)})
		}
		j.View(func(s *protocol.State, _ uint64) {
			if x := s.Execs["x"]; err != nil || x == nil || x.State != want {
				t.Errorf("with %s, the exec is %+v, %v; want it to be %s", policy, x, err, want)
			}
		})
	}
}

// A sandbox that is being replaced can be deleted, although an exec waits for the new container.
func TestASandboxThatIsBeingReplacedCanBeDeleted(t *testing.T) {
	t.Parallel()
	s := &protocol.State{Sandbox: protocol.Sandbox{State: protocol.StatePending, Desired: protocol.StateReady,
		Sequence: 5, Generation: 1, ActiveExecs: 1},
		Execs: map[string]*protocol.Exec{"x": {ID: "x", State: protocol.ExecStateAccepted}}}
	events, err := decideDelete(s, "rq", protocol.ReasonDeleteRequested)
	if err == nil {
		err = s.Number(events)
	}
	if err != nil || s.Sandbox.State != protocol.StateDeleted || s.Execs["x"].State != protocol.ExecStateCancelled {
		t.Errorf("the sandbox is %s with exec %+v: %v", s.Sandbox.State, s.Execs["x"], err)
	}
}

// A machine that was reinstalled is a new host, often with the old worker name. The earlier host remains a host of the
// fleet: its sandboxes follow their on_host_loss, and it can be forgotten.
func TestALostHostWhoseWorkerNameWasReusedIsStillAHost(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Suspect: 300 * time.Millisecond, Seize: 20 * time.Millisecond}
	stop := d.coordinator("c1", Timing{Scan: timing.Scan}) // must not lose the silent host
	h := host("w1", 0)
	d.register(h)
	d.readyOn("waits", protocol.SandboxSpec{Image: "i"})
	d.readyOn("fails", protocol.SandboxSpec{Image: "i", OnHostLoss: protocol.OnHostLossFail})
	stop()
	d.leave("w1")
	again := host("w1", 0)
	again.HostID, again.Instance, again.Token = "h-again", "i-again", 2
	d.register(again)
	defer d.coordinator("c2", timing)()
	d.eventually("the earlier host is listed by its id",
		func() bool { h := d.host("h-w1"); return h != nil && h.Holds["ready"] > 0 && h.Problem != "" })
	d.eventually("the sandbox with on_host_loss fail has failed", func() bool {
		b := d.list(everything...)["fails"]
		return b.State == protocol.StateFailed && b.Reason == protocol.ReasonHostLost
	})
	if h := d.host("w1"); h == nil || h.HostID != "h-again" {
		t.Errorf("the host with the worker name is %+v", h)
	}
	d.wants(h, forgetIt)
	d.eventually("the earlier host is forgotten", func() bool {
		return d.host("h-w1") == nil && d.list(everything...)["waits"].Reason == protocol.ReasonHostForgotten
	})
}
