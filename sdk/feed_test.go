package sdk

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// A batch is stored after a repair has read the log, and arrives before the repair ends. The repair must deliver this
// batch.
func TestABatchThatArrivesDuringARepairIsDelivered(t *testing.T) {
	t.Parallel()
	c, _, ctx := connectedToItsOwnServer(t)
	record := uint64(0)
	write := func(e protocol.Event) (err error) {
		b := &protocol.Batch{Version: protocol.Version, Tenant: c.tenant, Sandbox: "s", ID: NewID(), Writer: "w",
			Events: []protocol.Event{e}}
		record, err = c.conn.Append(ctx, b, record)
		return err
	}
	if err := write(protocol.Event{Sequence: 1, Kind: protocol.SandboxPreparing,
		State: protocol.StatePending}); err != nil {
		t.Fatal(err)
	}
	f, err := c.feed("s")
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	ended, forget := f.awaitExec("x")
	defer forget()
	until := func(condition func() bool) (err error) {
		for met := false; !met && err == nil; err = ctx.Err() {
			f.mu.Lock()
			met = condition()
			f.mu.Unlock()
			backoff.Sleep(ctx, time.Millisecond)
		}
		return err
	}
	f.mu.Lock()
	f.check.Reset(time.Hour) // so that only the repair can find the batch
	reads := 0
	f.read = func(ctx context.Context, after uint64) ([]*protocol.Batch, error) {
		batches, err := c.history(ctx, "s", after)
		if reads++; reads > 1 || err != nil {
			return batches, err
		}
		err = write(protocol.Event{Sequence: 2, Kind: protocol.ExecFinished, State: protocol.StateReady,
			Exec: &protocol.ExecDetails{ID: "x", State: protocol.ExecStateFinished}})
		if err == nil {
			err = until(func() bool { return f.live == 2 })
		}
		return batches, err
	}
	f.mu.Unlock()
	f.coverFrom(1, record)
	f.mayHaveMissed()
	if err := until(func() bool { return !f.repairing }); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	default:
		t.Error("the repair ended without delivering the end of the exec")
	}
}

// If the leader of the log dies after storing an event and before publishing it, no connection breaks, and no later
// event reveals the loss. In this test the stream publishes nothing.
func TestAnUnpublishedEventIsFound(t *testing.T) {
	t.Parallel()
	c, server, ctx := connectedToItsOwnServer(t)
	conn := c.conn
	var err error
	record := uint64(0)
	write := func(e protocol.Event) {
		t.Helper()
		b := &protocol.Batch{Version: protocol.Version, Tenant: c.tenant, Sandbox: "s", ID: NewID(), Writer: "w",
			Events: []protocol.Event{e}}
		if record, err = conn.Append(ctx, b, record); err != nil {
			t.Fatal(err)
		}
	}
	write(protocol.Event{Sequence: 1, Kind: protocol.SandboxPreparing, State: protocol.StatePending})

	events := followEvents(ctx, c)
	f, err := c.feed("s")
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	ended, forget := f.awaitExec("x")
	defer forget()
	f.coverFrom(1, record)
	awaitFirstCheck(t, f)
	silence(ctx, t, server)

	write(protocol.Event{Sequence: 2, Kind: protocol.ExecFinished, State: protocol.StateReady,
		Exec: &protocol.ExecDetails{ID: "x", State: protocol.ExecStateFinished}})
	write(protocol.Event{Sequence: 3, Kind: protocol.SandboxDeleted, State: protocol.StateDeleted})
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("the client has not found the end of the exec")
	}
	for want := uint64(1); want <= 3; want++ {
		select {
		case e := <-events:
			if e.Sequence != want {
				t.Errorf("got event %d, want %d", e.Sequence, want)
			}
		case <-ctx.Done():
			t.Fatalf("event %d is not found", want)
		}
	}
}

// A new leader announces itself. Waiters then read the log at once instead of at the next recheck.
func TestALeaderElectionTriggersARecheck(t *testing.T) {
	t.Parallel()
	c, server, ctx := connectedToItsOwnServer(t)
	b := &protocol.Batch{Version: protocol.Version, Tenant: c.tenant, Sandbox: "s", ID: NewID(), Writer: "w",
		Events: []protocol.Event{{Sequence: 1, Kind: protocol.SandboxPreparing, State: protocol.StatePending}}}
	record, err := c.conn.Append(ctx, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	events := followEvents(ctx, c)
	<-events
	tail, publish, output := outputOf(t, c, ctx)
	publish("one", 0, 3)
	receives(ctx, t, output, "one")
	awaitFirstCheck(t, tail.feed)
	tail.check.Reset(time.Hour) // so that no recheck finds the chunks
	tail.feed.mu.Lock()
	tail.feed.check.Reset(time.Hour)
	tail.feed.mu.Unlock()
	silence(ctx, t, server)
	b.ID, b.Events = NewID(), []protocol.Event{{Sequence: 2, Kind: protocol.SandboxDeleted, State: protocol.StateDeleted}}
	if _, err := c.conn.Append(ctx, b, record); err != nil {
		t.Fatal(err)
	}
	tail.stop()
	publish("two", 3, 6)
	nc, err := nats.Connect(server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED."+protocol.StreamEvents, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-events:
		if e.Sequence != 2 {
			t.Errorf("got event %d, want 2", e.Sequence)
		}
	case <-ctx.Done():
		t.Fatal("the event is not found")
	}
	receives(ctx, t, output, "two")
}

func TestRechecksBackOffWhileSilent(t *testing.T) {
	t.Parallel()
	var p recheckPause
	p.next(false)
	var pauses []time.Duration
	for at := time.Duration(0); at < 10*time.Minute; {
		pauses = append(pauses, p.next(true))
		at += pauses[len(pauses)-1]
	}
	if pauses[0] != 2*minRecheck || pauses[len(pauses)-1] != maxRecheck || len(pauses) > 15 || !slices.IsSorted(pauses) {
		t.Errorf("the pauses are %v", pauses)
	}
	if p.next(false) != minRecheck {
		t.Error("a batch that arrives does not restore the shortest pause")
	}
}

// awaitFirstCheck waits until a feed has read the history once after its start.
func awaitFirstCheck(t *testing.T, f *feed) {
	t.Helper()
	eventually.Holds(t, 10*time.Second, "the feed has read the history", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.settled && !f.repairing
	})
}

// followEvents follows the events of s from the first one on.
func followEvents(ctx context.Context, c *Client) <-chan protocol.Event {
	events := make(chan protocol.Event, 10)
	go func() {
		for e, err := range c.Sandbox("s").Events(ctx, WithFollow(true)) {
			if err != nil {
				return
			}
			events <- e
		}
	}()
	return events
}

// connectedToItsOwnServer starts a NATS server with a provisioned deployment, and returns its client. Both end with
// the test.
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
	ServePages(t, conn)
	c, err := Connect(ctx, Options{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, server, ctx
}

// outputOf follows the output of an exec. The function publish publishes a chunk of that output. The channel got
// receives each piece that the follower reads, and the follower's final error.
func outputOf(t *testing.T, c *Client, ctx context.Context) (tail *tail,
	publish func(text string, offset, stored int64), got chan string) {
	t.Helper()
	got = make(chan string, 10)
	out := &yielder{yield: func(k Chunk, _ error) bool { got <- string(k.Data); return true }}
	tail, err := startTail(c, "s", "x", out, true)
	if err != nil {
		t.Fatal(err)
	}
	reading, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	t.Cleanup(func() { stop(); <-done; tail.close() })
	go func() {
		defer close(done)
		// The log has no history of the sandbox. The exec counts as running because the given state says so.
		_, err := tail.catchUpAndFollow(reading, &protocol.Exec{Sandbox: "s", ID: "x", State: protocol.ExecStateRunning,
			Sequence: 1})
		if reading.Err() == nil {
			got <- err.Error()
		}
	}()
	publish = func(text string, offset, stored int64) {
		t.Helper()
		done, err := c.conn.PublishOutput(outputHost, c.tenant, "s", "x",
			jetstream.Chunk{Stream: Stdout, Offset: offset, Data: []byte(text), NextStdout: stored})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	return tail, publish, got
}

func receives(ctx context.Context, t *testing.T, got chan string, want string) {
	t.Helper()
	select {
	case text := <-got:
		if !strings.Contains(text, want) {
			t.Errorf("got %q, want %q", text, want)
		}
	case <-ctx.Done():
		t.Fatalf("%q is not found", want)
	}
}

// A server that dies after storing a chunk may not publish it. Here the reader unsubscribes, so it gets no published
// chunk.
func TestUnpublishedOutputIsFound(t *testing.T) {
	t.Parallel()
	c, _, ctx := connectedToItsOwnServer(t)
	tail, publish, got := outputOf(t, c, ctx)
	publish("one", 0, 3)
	receives(ctx, t, got, "one")
	tail.stop()
	publish("two", 3, 6)
	receives(ctx, t, got, "two")
}

// TestForgedLiveOutputIsNotDelivered publishes chunks from a host that the sandbox is not on, before and after the
// client has learned the sandbox's host.
func TestForgedLiveOutputIsNotDelivered(t *testing.T) {
	t.Parallel()
	c, _, ctx := connectedToItsOwnServer(t)
	_, publish, got := outputOf(t, c, ctx)
	forge := func(offset int64) {
		t.Helper()
		for range 100 {
			done, err := c.conn.PublishOutput("HOSTB", c.tenant, "s", "x",
				jetstream.Chunk{Stream: Stdout, Offset: offset, Data: []byte("forged"), NextStdout: offset + 6})
			if err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	forge(0)
	publish("one", 0, 3)
	receives(ctx, t, got, "one")
	forge(3)
	publish("two", 3, 6)
	receives(ctx, t, got, "two")
	if len(got) > 0 {
		t.Errorf("%q was delivered too", <-got)
	}
}

// A worker that gets no acknowledgement of a chunk sends it again, so the chunk may be stored after its successors.
func TestOutputStoredAheadIsDeliveredInOrder(t *testing.T) {
	t.Parallel()
	c, _, ctx := connectedToItsOwnServer(t)
	_, publish, got := outputOf(t, c, ctx)
	publish("3", 2, 0)
	publish("45", 3, 0)
	publish("45", 3, 0) // as if the first copy had not been acknowledged
	publish("2", 1, 0)
	select {
	case text := <-got:
		t.Fatalf("%q arrived before the bytes that precede it", text)
	case <-time.After(minRecheck + 500*time.Millisecond): // the tail has read the log by now
	}
	publish("1", 0, 1)
	for _, want := range []string{"1", "2", "3", "45"} {
		receives(ctx, t, got, want)
	}
}

func TestExpiredOutputIsDistinguishedFromLateOutput(t *testing.T) {
	t.Parallel()
	for what, chunk := range map[string]struct{ offset, stored int64 }{
		"the missing byte was stored":           {2, 1},
		"a chunk after all stored bytes":        {2, 3},
		"further ahead than a publisher can be": {maxAhead + 1, 0},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, _, ctx := connectedToItsOwnServer(t)
			_, publish, got := outputOf(t, c, ctx)
			publish("x", chunk.offset, chunk.stored)
			receives(ctx, t, got, protocol.ReasonOutputNotKept)
		})
	}
}

// silence makes the event log stop republishing.
func silence(ctx context.Context, t *testing.T, server *embedded.Server) {
	t.Helper()
	ChangeEventLog(ctx, t, server.ClientURL(), "", func(cfg *natsjs.StreamConfig) { cfg.RePublish = nil })
}
