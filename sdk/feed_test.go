package sdk

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// A leader of the log that dies between storing an event and republishing it leaves nobody told, no
// connection cut, and no later number that would show the gap. Here the stream republishes nothing.
func TestAnEventThatNobodyWasToldOfIsFound(t *testing.T) {
	t.Parallel()
	c, server, ctx := connectedToItsOwnServer(t)
	conn := c.conn
	var err error
	record := uint64(0)
	write := func(e protocol.Event) {
		t.Helper()
		b := &protocol.Batch{Version: protocol.Version, Tenant: c.tenant, Sandbox: "s", ID: NewID(), Writer: "w", Events: []protocol.Event{e}}
		if record, err = conn.Append(ctx, b, record); err != nil {
			t.Fatal(err)
		}
	}
	write(protocol.Event{Sequence: 1, Kind: protocol.SandboxPreparing, State: protocol.StatePending})

	told := make(chan protocol.Event, 10)
	go func() {
		for e, err := range c.Events(ctx, "s", 1, true) {
			if err != nil {
				return
			}
			told <- e
		}
	}()
	f, err := c.feed("s")
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	ended, forget := f.awaitExec("x")
	defer forget()
	f.knows(1, record)
	time.Sleep(settleFeed + 200*time.Millisecond)
	silence(ctx, t, server)

	write(protocol.Event{Sequence: 2, Kind: protocol.ExecFinished, State: protocol.StateReady, Exec: &protocol.ExecDetails{ID: "x", State: protocol.ExecStateFinished}})
	write(protocol.Event{Sequence: 3, Kind: protocol.SandboxDeleted, State: protocol.StateDeleted})
	late, cancel := context.WithTimeout(ctx, 2*recheckFeed+time.Second)
	defer cancel()
	select {
	case <-ended:
	case <-late.Done():
		t.Error("the end of the exec is not found")
	}
	for want := uint64(1); want <= 3; want++ {
		select {
		case e := <-told:
			if e.Sequence != want {
				t.Errorf("told of event %d, want %d", e.Sequence, want)
			}
		case <-late.Done():
			t.Fatalf("event %d is not found", want)
		}
	}
}

// connectedToItsOwnServer is a client of a provisioned server that ends with the test.
func connectedToItsOwnServer(t *testing.T) (*Client, *embedded.Server, context.Context) {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	conn, err := jetstream.Connect(ctx, jetstream.Config{InProcess: server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.Provision(ctx, jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(ctx, Options{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, server, ctx
}

// A server that dies takes along a chunk of output that it stored and had not passed on. Here the
// reader does not hear it.
func TestOutputThatNobodyWasToldOfIsFound(t *testing.T) {
	t.Parallel()
	c, _, ctx := connectedToItsOwnServer(t)
	out := &yielder{}
	got := make(chan string, 10)
	out.yield = func(k Chunk, _ error) bool { got <- string(k.Data); return true }
	tail, err := c.tail("s", "x", out, true)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.close()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		// It is running, says this caller; the log has no such sandbox to say otherwise.
		_, _ = tail.catchUpAndFollow(reading, &protocol.Exec{Sandbox: "s", ID: "x", State: protocol.ExecStateRunning, Sequence: 1})
	}()
	publish := func(text string, offset int64) {
		t.Helper()
		done, err := c.conn.PublishOutput(c.tenant, "s", "x", jetstream.Chunk{Stream: Stdout, Offset: offset, Data: []byte(text), NextStdout: offset + int64(len(text))})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		select {
		case text := <-got:
			if text != want {
				t.Errorf("got %q, want %q", text, want)
			}
		case <-time.After(2*recheckFeed + time.Second):
			t.Fatalf("%q is not found", want)
		}
	}
	publish("one", 0)
	expect("one")
	tail.deafen()
	publish("two", 3)
	expect("two")
}

// silence has the event log republish nothing any more.
func silence(ctx context.Context, t *testing.T, server *embedded.Server) {
	t.Helper()
	nc, err := nats.Connect(server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, protocol.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.RePublish = nil
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
}
