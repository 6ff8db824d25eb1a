package sdk

import (
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestAFollowerFillsAGap(t *testing.T) {
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	ServePages(t, conn)
	c, err := Connect(t.Context(), Options{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var batches []*protocol.Batch
	record := uint64(0)
	for i := range 3 {
		b := &protocol.Batch{Version: protocol.Version, Tenant: c.tenant, Sandbox: "s", ID: NewID(), Writer: "w",
			Events: []protocol.Event{{Sequence: uint64(i + 1), Kind: protocol.SandboxPreparing}}}
		if record, err = conn.Append(t.Context(), b, record); err != nil {
			t.Fatal(err)
		}
		b.Fill(record)
		batches = append(batches, b)
	}
	f, err := c.feed("s")
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	w := f.follow(1, batches[0].Record)
	defer w.close()
	w.push(batches[2])
	for want := uint64(2); want <= 3; want++ {
		b, err := w.next(t.Context())
		if err != nil || b.First() != want {
			t.Fatalf("got %v, %v; want event %d", b, err, want)
		}
	}
}
