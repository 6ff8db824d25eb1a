package coordinator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// A leader loses its lease while NATS does not answer, and while more deadlines are due than it handles at once. When
// it leads again, it has forgotten none of the deadlines.
func TestADeadlineTakenWhenALeaseEndsIsMetByTheNextLeader(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.coordinator("c0", Timing{})() // creates the streams
	var lease *jetstream.Lease
	// c0 may have taken the lock just before it stopped.
	d.eventually("the scheduler's lock is free", func() (acquired bool) {
		var err error
		lease, err = d.conn.AcquireScheduler(t.Context(), jetstream.Holder{Name: "other", Instance: "other"})
		return err == nil
	})
	go func() { _ = lease.Run(t.Context()) }() // fails when the test ends
	l := &line{server: d.server}
	c, stop := d.inMemory(Config{Name: "c1", Conn: d.connectAs(jetstream.Config{InProcess: l, Name: "c1"}),
		Timing: Timing{Scan: 20 * time.Millisecond}})
	defer stop()
	const n = 3 * deadlinesAtOnce
	for i := range n {
		d.work(fmt.Sprint("s", i), func(*protocol.State) []protocol.Event {
			spec := &protocol.SandboxSpec{Image: "i", TTL: protocol.Duration(time.Millisecond)}
			spec.Resolve()
			return []protocol.Event{{Kind: protocol.SandboxAccepted, Details: &protocol.SandboxDetails{Spec: spec}}}
		})
	}
	d.eventually("the standby knows all sandboxes", func() bool { return len(c.projection.work.pendingSandboxes()) == n })
	l.setDown(true)
	for range 2 {
		leading, end := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, end)
		_ = newWatchdog(&leader{c, lease}).watchDeadlines(leading) // fails only when leading ends
	}
	l.setDown(false)
	leading, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = newWatchdog(&leader{c, lease}).watchDeadlines(leading) // fails only when leading ends
	}()
	defer func() { end(); <-ended }()
	d.eventually("all sandboxes are deleted", func() bool { return len(c.projection.work.pendingSandboxes()) == 0 })
}
