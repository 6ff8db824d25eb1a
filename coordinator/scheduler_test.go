package coordinator

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// A leader is delayed after it has chosen a host, and continues after another leader has filled that host. The log must
// not accept the assignments of the first leader.
func TestAStalePassDoesNotOvercommit(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	held, goOn := make(chan struct{}), make(chan struct{})
	hold, let := sync.OnceFunc(func() { close(held) }), sync.OnceFunc(func() { close(goOn) })
	l := &line{server: d.server}
	c, stop := d.inMemory(Config{
		Name: "c1", Assets: jetstream.Assets{ElectionTTL: 2 * time.Second}, Timing: Timing{Scan: 20 * time.Millisecond,
			Suspect: time.Minute},
		Conn: d.connectAs(jetstream.Config{InProcess: l, Name: "c1"}),
		Probe: func(point string) {
			if point == "assign-before-append" {
				hold()
				<-goOn
			}
		},
	})
	defer stop()
	defer let()
	h := host("w1", 0)
	h.Slots = 2
	d.register(h)
	for i := range 4 {
		d.accept(fmt.Sprint("s", i))
	}
	<-held
	l.setDown(true)
	d.eventually("another holder has the lock", func() bool {
		_, err := d.conn.AcquireScheduler(t.Context(), jetstream.Holder{Name: "other", Instance: "other"})
		return err == nil
	})
	for i := range 2 { // the new holder of the lock fills the host
		d.work(fmt.Sprint("s", 3-i), func(*protocol.State) []protocol.Event {
			return []protocol.Event{{Kind: protocol.SandboxAssigned,
				Details: &protocol.SandboxDetails{Worker: "w1", HostID: h.HostID, Generation: 1}}}
		})
	}
	l.setDown(false)
	let()
	d.eventually("the first leader answers again", func() bool {
		_, err := d.conn.Query(t.Context(), "default", protocol.EndpointPing, &protocol.Query{})
		return err == nil
	})
	d.noneInFlight(c)
	n := 0
	for _, b := range d.list() {
		if b.Assigned {
			n++
		}
	}
	if n > h.Slots {
		t.Errorf("%d sandboxes are assigned to a host with %d slots", n, h.Slots)
	}
}

// Sandboxes that are placed in one burst fill each host to its last slot, and no further. The oldest sandboxes get the
// slots.
func TestABurstFillsEachHostAndOverfillsNone(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	c, stop := d.inMemory(Config{Name: "c1", Timing: Timing{Scan: 20 * time.Millisecond, Suspect: time.Minute}})
	defer stop()
	const hosts, slots, n = 5, 4, 30
	for i := range n {
		d.accept(fmt.Sprintf("s%02d", i))
	}
	d.eventually("all sandboxes wait for a host",
		func() bool { return len(c.projection.work.waitingForHost(nil, true)) == n })
	for i := range hosts {
		h := host(fmt.Sprint("w", i), 0)
		h.Slots, h.Memory = slots, 1<<40
		d.register(h)
	}
	assigned := func() (n int, on map[string]int) {
		on = map[string]int{}
		for _, b := range d.list() {
			if b.Assigned {
				n++
				on[b.Worker]++
			}
		}
		return n, on
	}
	d.eventually("all slots are taken", func() bool { n, _ := assigned(); return n >= hosts*slots })
	d.schedulerPassed(c)
	placed, on := assigned()
	if placed != hosts*slots {
		t.Errorf("%d sandboxes are assigned to hosts with %d slots", placed, hosts*slots)
	}
	for worker, n := range on {
		if n != slots {
			t.Errorf("%s has %d sandboxes, want %d", worker, n, slots)
		}
	}
	for i := range n {
		if b := d.list()[fmt.Sprintf("s%02d", i)]; b.Assigned != (i < hosts*slots) {
			t.Errorf("sandbox %s, created as number %d, is assigned: %t", b.ID, i, b.Assigned)
		}
	}
}

// accept begins a history, as a coordinator does when it accepts a create.
func (d *deployment) accept(id string) {
	d.t.Helper()
	spec := &protocol.SandboxSpec{Image: "i", Memory: 1 << 20, CPU: 0.01}
	spec.Resolve()
	d.work(id, func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.SandboxAccepted, Request: "create-" + id,
			Details: &protocol.SandboxDetails{Spec: spec}}}
	})
}
