package jetstream_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

func TestTooManyStreamsAreRefusedWithTheLimit(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{Sandbox: 2, Tenant: 3, Worker: 4})
	c := d.conn(t)
	var open []*stream.Conn
	for _, step := range []struct{ tenant, sandbox, refused string }{
		{"a", "s1", ""}, {"a", "s1", ""}, {"a", "s1", "the sandbox already has 2"},
		{"a", "s2", ""}, {"a", "s2", "the tenant already has 3"},
		{"b", "s1", ""}, {"b", "s1", "the worker already has 4"},
	} {
		to := jetstream.StreamTarget{Tenant: step.tenant, Worker: "w1", Sandbox: step.sandbox}
		conn, _, err := c.OpenStream(t.Context(), to, opening("hold", ""))
		if step.refused == "" {
			must(t, err)
			open = append(open, conn)
			continue
		}
		wantError(t, err, protocol.ResourceExhausted, protocol.ReasonTooManyStreams)
		if !strings.Contains(err.Error(), step.refused) {
			t.Errorf("the refusal does not say %q: %v", step.refused, err)
		}
	}
	for _, conn := range open {
		conn.Reset(nil)
	}
	eventually.Holds(t, 10*time.Second, "ended streams make room", func() bool {
		conn, _, err := c.OpenStream(t.Context(), target(d), opening("hold", ""))
		if err == nil {
			conn.Reset(nil)
		}
		return err == nil
	})
}

func TestAnOpeningIsRefusedWithItsReason(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.conn(t), t.Context()
	_, _, err := c.OpenStream(ctx, target(d), opening("result", ""))
	wantError(t, err, protocol.Unavailable, protocol.ReasonNoWorker)
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	o := opening("result", "")
	o.Timeout = 0
	_, _, err = c.OpenStream(ctx, target(d), o)
	wantError(t, err, protocol.InvalidArgument, "")
	within, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, _, err = c.OpenStream(within, target(d), o)
	must(t, err)
	_, _, err = c.OpenStream(ctx, jetstream.StreamTarget{Tenant: "t", Worker: "w1", Sandbox: "a.b"}, opening("result", ""))
	wantError(t, err, protocol.InvalidArgument, "")
	_, _, err = c.OpenStream(ctx, target(d), opening("unheard-of", ""))
	wantError(t, err, protocol.InvalidArgument, "")
	o = opening("slow", "")
	o.Timeout = protocol.Duration(50 * time.Millisecond)
	_, _, err = c.OpenStream(ctx, target(d), o)
	wantError(t, err, protocol.DeadlineExceeded, "")
}

// hand drives streams with plain NATS messages.
type hand struct {
	*nats.Conn
	frames   *nats.Subscription
	up, open string
	id       string
}

func byHand(t *testing.T, d *deployment, id string) *hand {
	t.Helper()
	h := &hand{Conn: d.raw(t), id: id, open: "boxfleet.v1.stream.open.w1." + d.tenant + ".@.s1",
		up: "boxfleet.v1.stream.up.w1." + d.tenant + ".@.s1." + id}
	var err error
	h.frames, err = h.SubscribeSync("boxfleet.v1.stream.down.w1." + d.tenant + ".@.s1." + id)
	must(t, err)
	return h
}

// ask sends an opening in JSON and returns the answer.
func (h *hand) ask(t *testing.T, content string) string {
	t.Helper()
	m := nats.NewMsg(h.open)
	m.Header.Set("Content-Type", "application/json")
	m.Data = []byte(content)
	answer, err := h.RequestMsg(m, 10*time.Second)
	must(t, err)
	return string(answer.Data)
}

func (h *hand) send(t *testing.T, kind byte, data []byte, words ...uint64) {
	t.Helper()
	frame := []byte{kind}
	for _, w := range words {
		frame = binary.BigEndian.AppendUint64(frame, w)
	}
	must(t, h.Publish(h.up, append(frame, data...)))
}

// next returns the next frame of a type, without the type. It skips others.
func (h *hand) next(t *testing.T, kind byte) []byte {
	t.Helper()
	for {
		m, err := h.frames.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatalf("no frame of type %d came: %v", kind, err)
		}
		if m.Data[0] == kind {
			return m.Data[1:]
		}
	}
}

const handID = "0123456789abcdefghijklmnop"

func TestAStreamIsDrivenWithPlainMessages(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	h := byHand(t, d, handID)
	if got := h.ask(t, `{"v":1,"id":"`+handID+`","kind":"echo"}`); !strings.Contains(got, `"field":"timeout"`) {
		t.Fatalf("an opening without a timeout: %s", got)
	}
	if got := h.ask(t, `{"v":1,"id":"`+handID+`","kind":"echo","timeout":"10s","x":1}`); !strings.Contains(got,
		"unknown_field") {
		t.Fatalf("an opening with an unknown field: %s", got)
	}
	got := h.ask(t, `{"v":1,"id":"`+handID+`","kind":"echo","timeout":"10s"}`)
	if !strings.Contains(got, `"stream":true,"window":65536,"frame":65536`) {
		t.Fatalf("got %s", got)
	}
	if again := h.ask(t, `{"v":1,"id":"`+handID+`","kind":"echo","timeout":"10s"}`); !strings.Contains(again,
		"already_exists") {
		t.Fatalf("a second opening with the same id: %s", again)
	}
	h.send(t, 2, nil, 0, 262144) // the first frame: nothing was received yet
	h.send(t, 1, []byte("hello "), 0)
	if got := h.next(t, 1); string(got) != "\x00\x00\x00\x00\x00\x00\x00\x00hello " {
		t.Fatalf("got %q", got)
	}
	h.send(t, 1, []byte("lost"), 100) // the bytes before it are missing
	if got := h.next(t, 7); binary.BigEndian.Uint64(got) != 6 {
		t.Fatalf("the worker asks for %x", got)
	}
	h.send(t, 1, []byte("hello "), 0) // again
	h.send(t, 1, []byte("world"), 6)
	if got := h.next(t, 1); string(got[8:]) != "world" {
		t.Fatalf("got %q", got)
	}
	h.send(t, 7, nil, 6, 262144) // asks for what follows the 6th byte again
	if got := h.next(t, 1); string(got) != "\x00\x00\x00\x00\x00\x00\x00\x06world" {
		t.Fatalf("got %q", got)
	}
	h.send(t, 5, nil, 11, 262144, 11)
	if got := h.next(t, 6); binary.BigEndian.Uint64(got) != 11 || binary.BigEndian.Uint64(got[16:]) != 11 {
		t.Fatalf("the pong says %x", got)
	}
	h.send(t, 3, nil, 11)
	if got := h.next(t, 3); binary.BigEndian.Uint64(got) != 11 {
		t.Fatalf("the end is at %x", got)
	}
	h.send(t, 2, nil, 12, 262144)
}

// TestAMessageWithHeadersIsNoFrame sends a reset as an answer of another program would arrive.
func TestAMessageWithHeadersIsNoFrame(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	h := byHand(t, d, handID)
	h.ask(t, `{"v":1,"id":"`+handID+`","kind":"echo","timeout":"10s"}`)
	m := nats.NewMsg(h.up)
	m.Header.Set("Content-Type", "application/json")
	m.Data = []byte(`{"v":1}`)
	must(t, h.PublishMsg(m))
	h.send(t, 1, []byte("x"), 0)
	if got := h.next(t, 1); string(got[8:]) != "x" {
		t.Fatalf("got %q", got)
	}
}

func TestAFrameThatBreaksTheProtocolEndsOnlyItsStream(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	other := openStream(t, d.conn(t), target(d), opening("echo", ""))
	h := byHand(t, d, handID)
	h.ask(t, `{"v":1,"id":"`+handID+`","kind":"echo","timeout":"10s"}`)
	h.send(t, 1, []byte("x"), 1<<40)
	if got := h.next(t, 4); !strings.HasPrefix(string(got), "invalid_argument\x00stream_violation\x00\x00") {
		t.Fatalf("the reset is %q", got)
	}
	must(t, echoed(other, 1<<20))
}

// TestAStreamWhoseAnswerWasLostDoesNotStay opens streams whose client never sends a frame.
func TestAStreamWhoseAnswerWasLostDoesNotStay(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{Worker: 1})
	h := byHand(t, d, handID)
	h.ask(t, `{"v":1,"id":"`+handID+`","kind":"hold","timeout":"100ms"}`)
	if got := h.next(t, 4); !strings.HasPrefix(string(got), "deadline_exceeded\x00stream_lost") {
		t.Fatalf("the reset is %q", got)
	}
	eventually.Holds(t, 10*time.Second, "the stream made room", func() bool {
		_, _, err := d.conn(t).OpenStream(t.Context(), target(d), opening("result", ""))
		return err == nil
	})
}

// TestAClientThatOnlyWaitsKeepsItsStream waits for longer than the worker waits for the first frame.
func TestAClientThatOnlyWaitsKeepsItsStream(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	o := opening("echo", "")
	o.Timeout = protocol.Duration(500 * time.Millisecond)
	conn := openStream(t, d.conn(t), target(d), o)
	must(t, conn.SetReadDeadline(time.Now().Add(time.Second)))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestAVanishedClientEndsItsStream(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{Worker: 1, Ping: 50 * time.Millisecond})
	h := byHand(t, d, handID)
	h.ask(t, `{"v":1,"id":"`+handID+`","kind":"hold","timeout":"10s"}`)
	h.send(t, 2, nil, 0, 262144)
	h.next(t, 5) // it is asked for a sign of life, and gives none
	if got := h.next(t, 4); !strings.HasPrefix(string(got), "unavailable\x00stream_lost") {
		t.Fatalf("the reset is %q", got)
	}
}

func TestAClosedConnectionEndsItsStreamsAtOnce(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{Worker: 2})
	c := d.conn(t)
	bulk := opening("hold", "")
	bulk.Bulk = true
	conns := []*stream.Conn{openStream(t, c, target(d), opening("hold", "")), openStream(t, c, target(d), bulk)}
	c.Close()
	for _, conn := range conns {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a read succeeded")
		}
	}
	eventually.Holds(t, 10*time.Second, "the streams made room", func() bool {
		_, _, err := d.conn(t).OpenStream(t.Context(), target(d), opening("result", ""))
		return err == nil
	})
	_, _, err := c.OpenStream(t.Context(), target(d), opening("result", ""))
	wantError(t, err, protocol.Unavailable, "")
}

func TestAWorkerThatStopsResetsItsStreams(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	ctx, stop := context.WithCancel(t.Context())
	serving, ended := make(chan struct{}), make(chan error, 1)
	worker := d.conn(t)
	go func() {
		ended <- worker.ServeStreams(ctx, "w1", echoes, jetstream.StreamLimits{}, func() { close(serving) })
	}()
	receive(t, 10*time.Second, "the service", serving)
	conn := openStream(t, d.conn(t), target(d), opening("echo", ""))
	stop()
	if err := receive(t, 10*time.Second, "the end", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the service ended with %v", err)
	}
	_, err := conn.Read(make([]byte, 1))
	wantError(t, err, protocol.Unavailable, protocol.ReasonStreamLost)
}

// TestAPanicEndsOnlyItsStream lets a handler panic before and after the opening.
func TestAPanicEndsOnlyItsStream(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serving := make(chan struct{})
	worker := d.conn(t)
	background(t, func(ctx context.Context) error {
		return worker.ServeStreams(ctx, "w1", func(_ context.Context, r *jetstream.StreamRequest) (*jetstream.StreamAnswer,
			error) {
			if r.Open.Kind == "early" {
				panic("early")
			}
			return &jetstream.StreamAnswer{Serve: func(context.Context, *stream.Conn) error { panic("late") }}, nil
		}, jetstream.StreamLimits{}, func() { close(serving) })
	})
	receive(t, 10*time.Second, "the service", serving)
	c := d.conn(t)
	_, _, err := c.OpenStream(t.Context(), target(d), opening("early", ""))
	wantError(t, err, protocol.Internal, "")
	_, err = openStream(t, c, target(d), opening("late", "")).Read(make([]byte, 1))
	wantError(t, err, protocol.Internal, "")
}

// TestAStreamThatIsNotReadDelaysNoOther leaves streams unread at both ends, while others transfer.
func TestAStreamThatIsNotReadDelaysNoOther(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	c := d.conn(t)
	for range 5 {
		unread := openStream(t, c, target(d), opening("source", "12345678"))
		full := openStream(t, c, target(d), opening("hold", ""))
		if err := full.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := full.Write(make([]byte, 8<<20)); !errors.Is(err, protocol.ErrDeadlineExceeded) {
			t.Fatalf("a write that nobody reads ended with %v", err)
		}
		_ = unread
	}
	for range 5 {
		conn := openStream(t, c, target(d), opening("echo", ""))
		must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		must(t, echoed(conn, 4<<20))
	}
}

// TestStreamsWorkWithASmallMaxPayload restarts a server with a smaller max_payload. Frames of streams that were opened
// before do not fit any more.
func TestStreamsWorkWithASmallMaxPayload(t *testing.T) {
	t.Parallel()
	ports, err := embedded.FreePorts(1)
	must(t, err)
	dir := t.TempDir()
	start := func(most int32) *server.Server {
		return startPlain(t, func(o *server.Options) { o.Port, o.StoreDir, o.MaxPayload = ports[0], dir, most })
	}
	s := start(1 << 20)
	d := &deployment{tenant: "t1"}
	url := s.ClientURL()
	serveStreams(t, d.connTo(t, url), jetstream.StreamLimits{})
	c := d.connTo(t, url)
	bulk := opening("echo", "")
	bulk.Bulk = true
	old := openStream(t, c, target(d), bulk)
	s.Shutdown()
	s.WaitForShutdown()
	start(4096)
	for _, o := range []protocol.StreamOpen{opening("echo", ""), bulk} {
		var conn *stream.Conn
		eventually.Holds(t, 20*time.Second, "a stream is opened after the restart", func() bool {
			var err error
			conn, _, err = c.OpenStream(t.Context(), target(d), o)
			return err == nil
		})
		must(t, echoed(conn, 1<<20))
	}
	wantError(t, echoed(old, 1<<20), protocol.FailedPrecondition, protocol.ReasonServerSettings)
	_, _, err = c.OpenStream(t.Context(), target(d), opening("result", strings.Repeat("x", 5000)))
	wantError(t, err, protocol.InvalidArgument, protocol.ReasonTooLarge)
}

func TestAHundredStreamsResumeAfterARestartOfTheServer(t *testing.T) {
	t.Parallel()
	const streams = 100
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{Sandbox: streams, Tenant: streams})
	c := d.conn(t)
	ended, halfway := make(chan error, streams), &sync.WaitGroup{}
	want := streamBytes(512 << 10)
	restarted := make(chan struct{})
	for i := range streams {
		o := opening("echo", "")
		o.Bulk = i%4 == 0
		conn := openStream(t, c, target(d), o)
		halfway.Add(1)
		go func() {
			half := len(want) / 2
			// The reader notices what was not written.
			_, _ = conn.Write(want[:half])
			halfway.Done()
			_, _ = conn.Write(want[half:]) // as above
			<-restarted
			_ = conn.CloseWrite() // as above
		}()
		go func() {
			got, err := io.ReadAll(conn)
			if err == nil && !bytes.Equal(got, want) {
				err = fmt.Errorf("%d bytes came back, or others", len(got))
			}
			ended <- err
		}()
	}
	halfway.Wait()
	d.restart(t)
	close(restarted)
	for range streams {
		must(t, receive(t, 60*time.Second, "the end of a stream", ended))
	}
}

// This test does not run in parallel, because it counts goroutines and memory.
func TestNothingIsLeftOfAThousandStreams(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("use", func(t *testing.T) {
		d := startServer(t, jetstream.Assets{})
		serveStreams(t, d.conn(t), jetstream.StreamLimits{})
		c := d.conn(t)
		use := func(n int) {
			for i := range n {
				o := opening("echo", "")
				o.Bulk = i%10 == 0
				conn, _, err := c.OpenStream(t.Context(), target(d), o)
				must(t, err)
				must(t, echoed(conn, 1000))
				if i%3 == 0 {
					conn.Reset(nil)
				} else {
					_ = conn.Close() // returns no error
				}
			}
		}
		settled := func() (goroutines int, heap uint64) {
			eventually.Holds(t, 20*time.Second, "the streams have closed their subscriptions", func() bool {
				return c.OpenStreams() == 0
			})
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return runtime.NumGoroutine(), m.HeapAlloc
		}
		use(50)
		routines, heap := settled()
		use(1000)
		eventually.Holds(t, 20*time.Second, "as many goroutines run as before", func() bool {
			now, _ := settled()
			return now <= routines+5
		})
		if _, now := settled(); now > heap+4<<20 {
			t.Errorf("the heap grew from %d to %d KiB", heap>>10, now>>10)
		}
	})
	goleak.VerifyNone(t, before)
}

// What an operation holds must not stay when its stream is refused: a client could repeat the id of an open stream
// until the worker has no descriptors left.
func TestAnAnswerWhoseStreamIsRefusedIsReleased(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	var held, released atomic.Int64
	serving := make(chan struct{})
	background(t, func(ctx context.Context) error {
		holds := func(context.Context, *jetstream.StreamRequest) (*jetstream.StreamAnswer, error) {
			held.Add(1)
			return &jetstream.StreamAnswer{End: func() { released.Add(1) },
				Serve: func(ctx context.Context, _ *stream.Conn) error { <-ctx.Done(); return ctx.Err() }}, nil
		}
		return d.conn(t).ServeStreams(ctx, "w1", holds, jetstream.StreamLimits{}, func() { close(serving) })
	})
	receive(t, 20*time.Second, "the service", serving)
	h := byHand(t, d, handID)
	open := `{"v":1,"id":"` + handID + `","kind":"hold","timeout":"20s"}`
	if answer := h.ask(t, open); !strings.Contains(answer, `"stream":true`) {
		t.Fatalf("the first opening: %s", answer)
	}
	for range 3 {
		if answer := h.ask(t, open); !strings.Contains(answer, "already_exists") {
			t.Fatalf("an opening with the id of an open stream: %s", answer)
		}
	}
	eventually.Holds(t, 10*time.Second, "the refused answers are released", func() bool {
		return released.Load() == 3
	})
	if held.Load() != 4 {
		t.Errorf("%d answers, want 4", held.Load())
	}
	h.send(t, 4, []byte("cancelled\x00\x00\x00"))
	eventually.Holds(t, 10*time.Second, "the served answer is released", func() bool { return released.Load() == 4 })
}

// A client that waits for the end of a stream takes a proper end as success.
func TestAWorkerThatStopsEndsNoStreamProperly(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	serving, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		stops := func(context.Context, *jetstream.StreamRequest) (*jetstream.StreamAnswer, error) {
			return &jetstream.StreamAnswer{Serve: func(ctx context.Context, _ *stream.Conn) error {
				<-ctx.Done()
				return nil
			}}, nil
		}
		stopped <- d.conn(t).ServeStreams(ctx, "w1", stops, jetstream.StreamLimits{}, func() { close(serving) })
	}()
	receive(t, 20*time.Second, "the service", serving)
	c := d.conn(t)
	ended := make(chan error)
	const streams = 50
	for range streams {
		conn := openStream(t, c, target(d), opening("stops", ""))
		go func() {
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
	}
	stop()
	for range streams {
		if err := receive(t, 20*time.Second, "the end of a stream", ended); protocol.CodeOf(err) != protocol.Unavailable {
			t.Errorf("got %v, want unavailable", err)
		}
	}
	receive(t, 20*time.Second, "the end of the service", stopped)
}

// TestWhatWasWrittenBeforeTheCloseArrives closes a stream, and its connection at once. The stream has more bytes than
// the worker has granted.
func TestWhatWasWrittenBeforeTheCloseArrives(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serving, got := make(chan struct{}), make(chan int, 1)
	background(t, func(ctx context.Context) error {
		counts := func(context.Context, *jetstream.StreamRequest) (*jetstream.StreamAnswer, error) {
			return &jetstream.StreamAnswer{Serve: func(_ context.Context, c *stream.Conn) error {
				n, err := io.Copy(io.Discard, c)
				got <- int(n)
				return err
			}}, nil
		}
		return d.conn(t).ServeStreams(ctx, "w1", counts, jetstream.StreamLimits{}, func() { close(serving) })
	})
	receive(t, 20*time.Second, "the service", serving)
	c := d.conn(t)
	conn := openStream(t, c, target(d), opening("count", ""))
	const size = protocol.StreamWindow
	_, err := conn.Write(make([]byte, size))
	must(t, err)
	must(t, conn.Close())
	c.Close()
	if n := receive(t, 20*time.Second, "the end of the stream", got); n != size {
		t.Errorf("%d of %d bytes arrived", n, size)
	}
}
