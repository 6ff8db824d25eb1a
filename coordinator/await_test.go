package coordinator

import (
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Some tests expect that a coordinator does not do something. They first wait, with the functions below, until the
// coordinator has had the opportunity to do it.

// noneInFlight waits until each assignment that a coordinator chose has been appended or given up.
func (d *deployment) noneInFlight(c *coordinator) {
	d.t.Helper()
	d.eventually("no assignment is in flight", func() bool {
		c.projection.mu.RLock()
		defer c.projection.mu.RUnlock()
		return len(c.projection.work.inFlight) == 0
	})
}

// schedulerPassed waits until the scheduler of the leader has made a whole pass.
func (d *deployment) schedulerPassed(leader *coordinator) {
	d.t.Helper()
	wake := leader.projection.work.schedulerWake
	for range 2 { // the scheduler takes the second wake-up only after the pass that follows the first
		wake.Wake()
		d.eventually("the scheduler takes a wake-up", func() bool { return len(wake) == 0 })
	}
	d.noneInFlight(leader)
}

// hostsScanned waits until the leader has carried out all stored intents of operators, and has made a whole scan of the
// hosts. It makes the leader forget two hosts that do not exist, one after the other: the leader forgets a host only in
// a scan.
func (d *deployment) hostsScanned() {
	d.t.Helper()
	for range 2 {
		none := &protocol.Host{Worker: "none", HostID: fmt.Sprint("h-none-", time.Now().UnixNano())}
		d.wants(none, forgetIt)
		d.eventually("a host that does not exist is forgotten", func() bool {
			w, err := d.conn.OperatorIntent(d.t.Context(), none.HostID)
			return err == nil && (w.Forget == nil || w.Forget.Done)
		})
	}
}

// reservationsChecked waits until the leader has checked the reservations again and again for longer than
// Timing.Abandon, and then once more.
func (d *deployment) reservationsChecked(leader *coordinator) {
	d.t.Helper()
	began := time.Now()
	for time.Since(began) <= leader.cfg.Timing.Abandon {
		last := leader.reserved.Load()
		d.eventually("the reservations are checked", func() bool { return leader.reserved.Load() != last })
	}
	last := leader.reserved.Load()
	d.eventually("the reservations are checked once more", func() bool { return leader.reserved.Load() != last })
}

// notifierRan waits until the leader has notified the workers that registered or began to listen so far. To find out,
// it registers a new worker, "other", with a pending sandbox. It then lets "other" begin to listen three times, and
// each time waits until the notifier has notified "other".
func (d *deployment) notifierRan() {
	d.t.Helper()
	notified := make(chan struct{}, 100)
	stop, err := d.conn.Work("other", func(string, string, *protocol.Batch) { notified <- struct{}{} })
	if err != nil {
		d.t.Fatal(err)
	}
	defer stop()
	h := host("other", 0)
	d.register(h)
	spec := &protocol.SandboxSpec{Image: "i"}
	spec.Resolve()
	d.work("of-other", func(*protocol.State) []protocol.Event {
		return []protocol.Event{
			{Kind: protocol.SandboxAccepted, Details: &protocol.SandboxDetails{Spec: spec}},
			{Kind: protocol.SandboxAssigned,
				Details: &protocol.SandboxDetails{Worker: h.Worker, HostID: h.HostID, Generation: 1}},
		}
	})
	for listening := range uint64(3) { // a late notification about the registration may end the first wait
		d.eventually("the other worker is notified", func() bool {
			if err := d.conn.Beat(&protocol.Heartbeat{Worker: h.Worker, HostID: h.HostID, Instance: h.Instance,
				Healthy: true, Listening: listening + 1}); err != nil {
				d.t.Fatal(err)
			}
			return len(notified) > 0
		})
		<-notified
	}
}
