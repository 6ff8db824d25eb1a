package coordinator

import (
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// register has a worker begin with what host makes.
func (d *deployment) register(h *protocol.Host) {
	d.t.Helper()
	h.State, h.Healthy, h.SeenAt = "", true, time.Now()
	if err := d.conn.RegisterHost(d.t.Context(), h); err != nil {
		d.t.Fatal(err)
	}
}

// leave has a worker say goodbye.
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

// hostIs says whether a worker's host is in a state.
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

// The entry of a host is gone while its worker is away. A coordinator that begins then knows of it
// only that a sandbox is there.
func TestWhatWaitsOutlivesARestartWhileTheWorkerIsAway(t *testing.T) {
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond}
	stop := d.coordinator("c1", timing)
	h := host("w1", 0)
	h.Slots, h.Profiles, h.Tools, h.GPUs = 1, []string{protocol.ProfileHardened, protocol.ProfileStandard}, []string{"git"}, 1
	d.register(h)
	d.create("one", protocol.SandboxSpec{Image: "i"})
	d.eventually("one has the host's slot", func() bool { return d.list("pending")["one"].Assigned })
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
	defer d.coordinator("c2", timing)()
	d.eventually("the new coordinator has looked at the host", func() bool { return d.hostIs("w1", protocol.HostLost) })
	for id := range waiting {
		if b := d.list()[id]; b.State != protocol.StatePending {
			t.Errorf("%s is %s: %v", id, b.State, b.Error)
		}
	}
}

func TestNothingIsScheduledBeforeTheHostsAreKnown(t *testing.T) {
	d := newDeployment(t)
	known := make(chan struct{})
	tell := sync.OnceFunc(func() { close(known) })
	defer d.run(Config{Name: "c1", Probe: func(point string) {
		if point == "before-hosts" {
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
			t.Fatal("it schedules without the table of hosts")
		}
	}
	tell()
	d.eventually("it schedules", leads)
}
