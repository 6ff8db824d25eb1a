package coordinator

import (
	"testing"
	"time"

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
			t.Errorf("after %v of sandbox %s the gate is closed by %v", why, id, now)
		}
		g.set(nil)
	}
	blame("long", silent, false)
	blame("long", silent, false)
	blame("full", protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonLogFull, "full"), true)
	blame("other", silent, true) // two of them: it is the log
	server.Stop()
	// The log does not even say how much room it has, once the last answer is old.
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		g.blame(t.Context(), key{Tenant: "default", ID: "other"}, silent)
		if now, _ := g.closed(); now != nil {
			return
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("the gate stays open though the log does not answer")
		}
	}
}
