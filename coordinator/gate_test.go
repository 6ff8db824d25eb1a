package coordinator

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestASandboxWhoseHistoryDoesNotAnswerBlocksNoOthers(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server, Name: "gate", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	g := newGate(conn, func(*protocol.Error) {})
	silent := protocol.Errorf(protocol.Unavailable, "", "no answer")
	blame := func(id string, why *protocol.Error, closes bool) {
		t.Helper()
		g.blame(t.Context(), key{Tenant: "default", ID: id}, why)
		if now, _ := g.closed(); (now != nil) != closes {
			t.Errorf("after sandbox %s failed with %v, the gate is closed for the reason %v, want closed: %t", id, why, now,
				closes)
		}
		g.set(nil)
	}
	blame("long", silent, false)
	blame("long", silent, false)
	blame("full", protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonLogFull, "full"), true)
	blame("other", silent, true) // two sandboxes get no answer, so the cause is the log
	server.Stop()
	// The server is stopped. As soon as the log's last report of its room is too old, the gate closes at the next
	// append without an answer, even if one sandbox alone is affected.
	eventually.Holds(t, 10*time.Second, "the gate closes because the log does not answer", func() bool {
		g.blame(t.Context(), key{Tenant: "default", ID: "other"}, silent)
		now, _ := g.closed()
		return now != nil
	})
}
