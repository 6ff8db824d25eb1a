package sdk

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// An event that is stored when a repair has read the log, and heard before the repair ends, has nobody
// else to deliver it.
func TestWhatIsHeardWhileTheLogIsReadIsDelivered(t *testing.T) {
	t.Parallel()
	c, _, ctx := connectedToItsOwnServer(t)
	record := uint64(0)
	write := func(e protocol.Event) (err error) {
		b := &protocol.Batch{Version: protocol.Version, Tenant: c.tenant, Sandbox: "s", ID: NewID(), Writer: "w", Events: []protocol.Event{e}}
		record, err = c.conn.Append(ctx, b, record)
		return err
	}
	if err := write(protocol.Event{Sequence: 1, Kind: protocol.SandboxPreparing, State: protocol.StatePending}); err != nil {
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
			pause(ctx, time.Millisecond)
		}
		return err
	}
	f.mu.Lock()
	f.check.Reset(time.Hour) // no look finds it later
	reads := 0
	f.read = func(ctx context.Context, after uint64) ([]*protocol.Batch, error) {
		batches, err := c.history(ctx, "s", after)
		if reads++; reads > 1 || err != nil {
			return batches, err
		}
		err = write(protocol.Event{Sequence: 2, Kind: protocol.ExecFinished, State: protocol.StateReady, Exec: &protocol.ExecDetails{ID: "x", State: protocol.ExecStateFinished}})
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
		t.Error("the repair is over, and the end of the exec is not delivered")
	}
}

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

	told := followEvents(ctx, c)
	f, err := c.feed("s")
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	ended, forget := f.awaitExec("x")
	defer forget()
	f.coverFrom(1, record)
	time.Sleep(firstCheck + 200*time.Millisecond)
	silence(ctx, t, server)

	write(protocol.Event{Sequence: 2, Kind: protocol.ExecFinished, State: protocol.StateReady, Exec: &protocol.ExecDetails{ID: "x", State: protocol.ExecStateFinished}})
	write(protocol.Event{Sequence: 3, Kind: protocol.SandboxDeleted, State: protocol.StateDeleted})
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("the end of the exec is not found")
	}
	for want := uint64(1); want <= 3; want++ {
		select {
		case e := <-told:
			if e.Sequence != want {
				t.Errorf("told of event %d, want %d", e.Sequence, want)
			}
		case <-ctx.Done():
			t.Fatalf("event %d is not found", want)
		}
	}
}

// A new leader says that it is one, and who waits need not wait for the next look.
func TestWhatALostLeaderDidNotTellIsFoundWhenTheNextIsElected(t *testing.T) {
	t.Parallel()
	c, server, ctx := connectedToItsOwnServer(t)
	b := &protocol.Batch{Version: protocol.Version, Tenant: c.tenant, Sandbox: "s", ID: NewID(), Writer: "w",
		Events: []protocol.Event{{Sequence: 1, Kind: protocol.SandboxPreparing, State: protocol.StatePending}}}
	record, err := c.conn.Append(ctx, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	told := followEvents(ctx, c)
	<-told
	tail, publish, output := outputOf(t, c, ctx)
	publish("one", 0, 3)
	heard(ctx, t, output, "one")
	time.Sleep(firstCheck + 200*time.Millisecond)
	tail.check.Reset(time.Hour) // no later look finds them
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
	case e := <-told:
		if e.Sequence != 2 {
			t.Errorf("told of event %d", e.Sequence)
		}
	case <-ctx.Done():
		t.Fatal("the event is not found")
	}
	heard(ctx, t, output, "two")
}

func TestLooksAfterASilenceBecomeRare(t *testing.T) {
	t.Parallel()
	var p backoff
	p.next(false)
	var looks []time.Duration
	for at := time.Duration(0); at < 10*time.Minute; {
		looks = append(looks, p.next(true))
		at += looks[len(looks)-1]
	}
	if looks[0] != 2*minRecheck || looks[len(looks)-1] != maxRecheck || len(looks) > 15 || !slices.IsSorted(looks) {
		t.Errorf("the pauses are %v", looks)
	}
	if p.next(false) != minRecheck {
		t.Error("what is heard does not bring back the first pause")
	}
}

// followEvents follows the events of s from the first one on.
func followEvents(ctx context.Context, c *Client) <-chan protocol.Event {
	told := make(chan protocol.Event, 10)
	go func() {
		for e, err := range c.Sandbox("s").Events(ctx, WithFollow(true)) {
			if err != nil {
				return
			}
			told <- e
		}
	}()
	return told
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

// outputOf follows an exec that somebody else publishes the output of. got hears each piece, and the
// error that ends it.
func outputOf(t *testing.T, c *Client, ctx context.Context) (tail *tail, publish func(text string, offset, stored int64), got chan string) {
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
		// It is running, says this caller; the log has no such sandbox to say otherwise.
		_, err := tail.catchUpAndFollow(reading, &protocol.Exec{Sandbox: "s", ID: "x", State: protocol.ExecStateRunning, Sequence: 1})
		if reading.Err() == nil {
			got <- err.Error()
		}
	}()
	publish = func(text string, offset, stored int64) {
		t.Helper()
		done, err := c.conn.PublishOutput(c.tenant, "s", "x", jetstream.Chunk{Stream: Stdout, Offset: offset, Data: []byte(text), NextStdout: stored})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	return tail, publish, got
}

func heard(ctx context.Context, t *testing.T, got chan string, want string) {
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

// A server that dies takes along a chunk of output that it stored and had not passed on. Here the
// reader does not hear it.
func TestOutputThatNobodyWasToldOfIsFound(t *testing.T) {
	t.Parallel()
	c, _, ctx := connectedToItsOwnServer(t)
	tail, publish, got := outputOf(t, c, ctx)
	publish("one", 0, 3)
	heard(ctx, t, got, "one")
	tail.stop()
	publish("two", 3, 6)
	heard(ctx, t, got, "two")
}

// A chunk that nobody was there to take is sent again, and stored behind those that follow it.
func TestOutputThatWasStoredAheadComesInItsOrder(t *testing.T) {
	t.Parallel()
	c, _, ctx := connectedToItsOwnServer(t)
	_, publish, got := outputOf(t, c, ctx)
	publish("3", 2, 0)
	publish("45", 3, 0)
	publish("45", 3, 0) // again, since the worker does not know
	publish("2", 1, 0)
	select {
	case text := <-got:
		t.Fatalf("%q came before what is missing", text)
	case <-time.After(minRecheck + 500*time.Millisecond): // the log was read meanwhile
	}
	publish("1", 0, 1)
	for _, want := range []string{"1", "2", "3", "45"} {
		heard(ctx, t, got, want)
	}
}

func TestOutputThatIsNotKeptIsToldFromOutputThatIsOnItsWay(t *testing.T) {
	t.Parallel()
	for what, chunk := range map[string]struct{ offset, stored int64 }{
		"what is missing was stored":            {2, 1},
		"a chunk that follows all that was":     {2, 3},
		"further ahead than any publisher gets": {maxAhead + 1, 0},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, _, ctx := connectedToItsOwnServer(t)
			_, publish, got := outputOf(t, c, ctx)
			publish("x", chunk.offset, chunk.stored)
			heard(ctx, t, got, protocol.ReasonOutputNotKept)
		})
	}
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
