package coordinator

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// Requests that look like a status of the server become dead letters, and keep no other request waiting. The test sends
// more of them than a coordinator holds at once.
func TestRequestsThatLookLikeAStatusBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("k1", Timing{})()
	w := d.wire()
	for range 1100 {
		m := nats.NewMsg(protocol.RequestSubject("evil", protocol.VerbCreate, "s1"))
		m.Header.Set("Status", "100")
		if err := w.nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	reply := d.request(protocol.VerbCreate, "good", "r1", protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "x"}})
	if reply.Error != nil {
		t.Errorf("the create after the hostile requests is answered with %v", reply.Error)
	}
	t.Logf("the create was answered after %s", time.Since(began))
	d.eventually("the queue is empty", func() bool { return d.messages(protocol.StreamRequests) == 0 })
	if n := d.messages(protocol.StreamDead); n == 0 {
		t.Error("no request became a dead letter")
	}
}
