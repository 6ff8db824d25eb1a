package coordinator

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// register registers a host, as its worker does when it starts.
func (d *deployment) register(h *protocol.Host) {
	d.t.Helper()
	h.State, h.Healthy, h.SeenAt = "", true, time.Now()
	if err := d.conn.RegisterHost(d.t.Context(), h); err != nil {
		d.t.Fatal(err)
	}
}

// leave signs a worker off.
func (d *deployment) leave(worker string) {
	d.t.Helper()
	if err := d.conn.ForgetHost(d.t.Context(), worker); err != nil {
		d.t.Fatal(err)
	}
}

func (d *deployment) create(id string, s protocol.SandboxSpec) {
	d.t.Helper()
	if r := d.request(protocol.VerbCreate, id, "create-"+id, protocol.Request{Sandbox: &s}); r.Error != nil {
		d.t.Fatal(r.Error)
	}
}

// hostIs reports whether a worker's host is in a state.
func (d *deployment) hostIs(worker string, state protocol.HostState) bool {
	reply, err := d.conn.Query(d.t.Context(), "default", protocol.EndpointHosts, &protocol.Query{Limit: 10})
	if err != nil {
		return false
	}
	for _, h := range reply.Hosts {
		if h.Worker == worker {
			return h.State == state
		}
	}
	return false
}

// The entry of a host is removed while its worker is away. A coordinator that starts then knows the host only from a
// sandbox on it.
func TestWaitingSandboxesSurviveARestartWhileTheWorkerIsAway(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	start := func(name string) (stop func()) {
		return d.run(Config{Name: name, Timing: Timing{Scan: 20 * time.Millisecond},
			Assets: jetstream.Assets{LockTTL: time.Second}})
	}
	stop := start("c1")
	h := host("w1", 0)
	h.Slots, h.Profiles, h.Tools, h.GPUs = 1, []string{protocol.ProfileHardened,
		protocol.ProfileStandard}, []string{"git"}, 1
	d.register(h)
	d.create("one", protocol.SandboxSpec{Image: "i"})
	d.eventually("sandbox one has the host's slot", func() bool { return d.list("pending")["one"].Assigned })
	waiting := map[string]protocol.SandboxSpec{
		"profile": {Image: "i", Profile: protocol.ProfileStandard},
		"tool":    {Image: "i", Tools: []string{"git"}},
		"gpu":     {Image: "i", GPUs: "1"},
		"mount":   {Image: "i", Mounts: []protocol.Mount{{Source: "/srv/cache", Target: "/t"}}},
	}
	for id, s := range waiting {
		d.create(id, s)
	}
	d.leave("w1")
	stop()
	defer start("c2")()
	d.eventually("the new coordinator knows that the host is lost",
		func() bool { return d.hostIs("w1", protocol.HostLost) })
	for id := range waiting {
		if b := d.list()[id]; b.State != protocol.StatePending {
			t.Errorf("sandbox %s is %s: %v", id, b.State, b.Error)
		}
	}
}

func TestEachCoordinatorShowsThatAHostIsLost(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Suspect: 200 * time.Millisecond, Seize: 20 * time.Millisecond}
	defer d.coordinator("c1", timing)()
	d.eventually("c1 leads", func() bool { return d.mustQuery(protocol.EndpointPing, protocol.Query{}).Ping.Leader })
	var follower *coordinator
	defer d.run(Config{Name: "c2", Timing: timing, made: func(c *coordinator) { follower = c }})()
	shows := func(state protocol.HostState) func() bool {
		return func() bool {
			hosts := follower.hosts.list()
			return len(hosts) == 1 && hosts[0].State == state && follower.hosts.states()["h-w1"] == state
		}
	}
	h := host("w1", 0)
	holder := jetstream.Holder{Name: "w1", Instance: h.Instance}
	lease, err := d.conn.AcquireHost(t.Context(), h.HostID, holder, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.register(h)
	d.eventually("the follower shows a silent host with a lock as suspect", shows(protocol.HostSuspect))
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.eventually("the follower shows a silent host without a lock as lost", shows(protocol.HostLost))
	if follower.elected.Load() {
		t.Fatal("the follower leads")
	}
	h.Instance = "i2"
	d.register(h)
	d.eventually("the follower shows that the host is back", shows(protocol.HostReady))
}

// During an outage of NATS all locks end, and a worker needs a moment to take its lock again.
func TestAnOutageOfNATSMakesNoHostLost(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{
		"for a coordinator that keeps running": false, "for a coordinator that starts": true,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			l := &line{server: d.server}
			start := func(name string) (stop func()) {
				return d.run(Config{
					Name: name, Conn: d.connectAs(jetstream.Config{InProcess: l, Name: name, Timeout: time.Second}),
					Timing: Timing{Scan: 20 * time.Millisecond, Seize: 20 * time.Millisecond},
					Assets: jetstream.Assets{ElectionTTL: time.Minute}, // long, so that c1 keeps leading
				})
			}
			stop := start("c1")
			defer func() { stop() }()
			h := host("w1", 0)
			d.register(h)
			d.create("a", protocol.SandboxSpec{Image: "i", OnHostLoss: protocol.OnHostLossFail})
			d.eventually("the sandbox is assigned", func() bool { return d.list()["a"].Assigned })
			d.work("a", func(*protocol.State) []protocol.Event {
				return []protocol.Event{{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}}}
			})
			d.eventually("the sandbox is ready", func() bool { return d.list()["a"].State == protocol.StateReady })
			if restarted {
				stop()
			}
			l.setDown(true)
			silent := time.Now()
			d.eventually("the host has been silent for longer than Timing.Suspect",
				func() bool { return time.Since(silent) > 5500*time.Millisecond })
			l.setDown(false)
			up := time.Now()
			if restarted {
				stop = start("c2")
			}
			d.eventually("the coordinator leads", func() bool {
				reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointPing, &protocol.Query{})
				return err == nil && reply.Ping.Leader
			})
			for back := time.Now(); time.Since(back) < 1500*time.Millisecond &&
				time.Since(up) < 4*time.Second; time.Sleep(20 * time.Millisecond) {
				if b := d.list()["a"]; b.State != protocol.StateReady || d.hostIs("w1", protocol.HostLost) {
					t.Fatalf("%s after NATS came back, the host is lost, and the sandbox is %s: %v", time.Since(back),
						b.State, b.Error)
				}
			}
			d.register(h)
			d.eventually("the host is ready", func() bool { return d.hostIs("w1", protocol.HostReady) })
			d.leave("w1")
			d.eventually("the host is lost once it is silent again",
				func() bool { return d.list()["a"].Reason == protocol.ReasonHostLost })
		})
	}
}

// A worker signs off and gives up its host's lock when it is restarted, for example for an upgrade.
func TestAWorkerThatSignsOffHasTheTimeOfItsLockToReturn(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{
		"for a coordinator that keeps running": false, "for a coordinator that starts": true,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			const ttl = 4 * time.Second
			start := func(name string) (stop func()) {
				return d.run(Config{Name: name, Assets: jetstream.Assets{LockTTL: ttl},
					Timing: Timing{Scan: 20 * time.Millisecond, Suspect: time.Second, Seize: 20 * time.Millisecond}})
			}
			stop := start("c1")
			defer func() { stop() }()
			h := host("w1", 0)
			h.LeaseTTL = 0 // as a worker of an earlier version registers
			d.register(h)
			d.create("a", protocol.SandboxSpec{Image: "i", OnHostLoss: protocol.OnHostLossFail})
			d.eventually("the sandbox is assigned", func() bool { return d.list()["a"].Assigned })
			d.work("a", func(*protocol.State) []protocol.Event {
				return []protocol.Event{{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}}}
			})
			d.eventually("the sandbox is ready", func() bool { return d.list()["a"].State == protocol.StateReady })
			left := time.Now()
			d.leave("w1")
			if restarted {
				stop()
				stop = start("c2")
			}
			d.eventually("the host is lost", func() bool { return d.list(everything...)["a"].Reason == protocol.ReasonHostLost })
			if took := time.Since(left); took < ttl {
				t.Errorf("the sandbox failed %s after its worker signed off, with a lock of %s", took, ttl)
			}
		})
	}
}

func TestNothingIsScheduledBeforeHostsAndImportsAreKnown(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"hosts", "imports"} {
		t.Run(what, func(t *testing.T) {
			d := newDeployment(t)
			known := make(chan struct{})
			tell := sync.OnceFunc(func() { close(known) })
			defer d.run(Config{Name: "c1", Probe: func(point string) {
				if point == "before-"+what {
					<-known
				}
			}})()
			defer tell()
			leads := func() bool {
				reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointPing, &protocol.Query{})
				return err == nil && reply.Ping.Leader
			}
			for began := time.Now(); time.Since(began) < 500*time.Millisecond; {
				if leads() {
					t.Fatalf("the coordinator leads before it has read the %s", what)
				}
			}
			tell()
			d.eventually("the coordinator leads", leads)
		})
	}
}

func TestASandboxThatALostHostDidNotMakeReadyHasADeadline(t *testing.T) {
	timing := Timing{Overdue: time.Minute}
	c := &coordinator{cfg: Config{Timing: timing}, images: newHostImages(nil)}
	c.hosts = newHosts(timing, newProjection(nil, nil, "c1", 0))
	w := newWatchdog(&leader{coordinator: c})
	for name, x := range map[string]struct {
		queue, create, after time.Duration
		host                 protocol.HostState
		resuming             bool
		want                 string
	}{
		"before the queue timeout": {queue: time.Hour, create: time.Minute, after: 59 * time.Minute,
			host: protocol.HostLost},
		"after the queue timeout": {queue: time.Hour, create: time.Minute, after: 61 * time.Minute,
			host: protocol.HostLost, want: protocol.ReasonHostLost},
		"the host may still come back": {queue: time.Second, create: 5 * time.Minute,
			after: 359 * time.Second, host: protocol.HostLost},
		"the host has had the time of a create": {queue: time.Second, create: 5 * time.Minute,
			after: 361 * time.Second, host: protocol.HostLost, want: protocol.ReasonHostLost},
		"a resume whose host does not come back": {queue: time.Hour, create: time.Minute, after: 61 * time.Minute,
			host: protocol.HostLost, resuming: true, want: protocol.ReasonHostLost},
		"a host that is up has missed the create timeout": {queue: time.Hour, create: time.Minute,
			after: 121 * time.Second, host: protocol.HostReady, want: protocol.ReasonCreateTimeout},
		"a host that is up has not missed the create timeout": {queue: time.Second, create: time.Minute,
			after: 119 * time.Second, host: protocol.HostReady},
	} {
		t.Run(name, func(t *testing.T) {
			h := ready(t)
			b := h.state.Sandbox
			b.State, b.Resuming, b.AssignedAt = protocol.StatePending, x.resuming, time.Unix(1000, 0)
			b.Spec.QueueTimeout, b.Spec.CreateTimeout = protocol.Duration(x.queue), protocol.Duration(x.create)
			got := ""
			if decide := w.due(&b, &protocol.Host{HostID: b.HostID, State: x.host},
				b.AssignedAt.Add(x.after)); decide != nil {
				events, err := decide(&protocol.State{Sandbox: b})
				if err != nil || len(events) != 1 {
					t.Fatal(events, err)
				}
				got = events[0].Reason
			}
			if got != x.want {
				t.Errorf("got %q, want %q", got, x.want)
			}
		})
	}
}

// A host is lost during a create, no other host takes the sandbox, and the host comes back afterwards. The sandbox
// stays failed. The worker is notified, so that it removes the container that it may have created.
func TestALostHostThatComesBackTooLateIsNotified(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond, Overdue: 100 * time.Millisecond})()
	h := host("w1", 0)
	d.register(h)
	short := protocol.Duration(100 * time.Millisecond)
	d.create("a", protocol.SandboxSpec{Image: "i", QueueTimeout: 10 * short, CreateTimeout: 30 * short})
	d.eventually("the sandbox is assigned", func() bool { return d.list()["a"].Assigned })
	d.leave("w1")
	d.eventually("the host is lost", func() bool { return d.hostIs("w1", protocol.HostLost) })
	reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointExplain, &protocol.Query{Sandbox: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if e := reply.Explain; e.Sandbox.State == protocol.StatePending &&
		(e.Position != 1 || len(e.Hosts) != 1 || !e.Deadline.Equal(e.Sandbox.AssignedAt.Add(3100*time.Millisecond))) {
		t.Errorf("the explanation is %+v", e)
	}
	d.eventually("the sandbox fails", func() bool { return d.list("failed")["a"] != nil })
	b := d.list("failed")["a"]
	if b.Reason != protocol.ReasonHostLost || !strings.Contains(b.Error.Message, "host h-w1 (worker w1) was lost") {
		t.Errorf("the sandbox failed with %v", b.Error)
	}
	notified := make(chan string, 100)
	stop, err := d.conn.Work("w1", func(_, sandbox string, _ *protocol.Batch) { notified <- sandbox })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	h.Instance = "i2"
	d.register(h)
	select {
	case <-notified:
	case <-time.After(5 * time.Second):
		t.Error("the worker is not notified")
	}
	if b := d.list()["a"]; b.State != protocol.StateFailed {
		t.Errorf("the sandbox is %s", b.State)
	}
}
