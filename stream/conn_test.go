package stream_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// wire is a transport to a Conn of the same process. A goroutine hands over the frames.
type wire struct {
	to     chan []byte
	mu     sync.Mutex
	cut    bool
	closed bool
	sent   int
}

func newWire() *wire { return &wire{to: make(chan []byte, 1<<16)} }

func (w *wire) Send(frame []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent++
	if w.cut || w.closed {
		return errors.New("cut off")
	}
	w.to <- bytes.Clone(frame)
	return nil
}

func (w *wire) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		close(w.to)
	}
}

func (w *wire) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

func (w *wire) setCut(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
}

func (w *wire) deliver(to *stream.Conn) {
	for frame := range w.to {
		to.Receive(frame)
	}
}

// pair connects two ends. The test fails if an end still needs its transport after the test.
func pair(t testing.TB, a, b stream.Config) (one, two *stream.Conn, wires [2]*wire) {
	t.Helper()
	if a.Linger == 0 {
		a.Linger = time.Millisecond
	}
	if b.Linger == 0 {
		b.Linger = time.Millisecond
	}
	wires = [2]*wire{newWire(), newWire()}
	one, two = stream.New(wires[0], a), stream.New(wires[1], b)
	go wires[0].deliver(two)
	go wires[1].deliver(one)
	t.Cleanup(func() {
		one.Abandon(nil)
		two.Abandon(nil)
		for _, w := range wires {
			eventually.Holds(t, 10*time.Second, "the stream closes its transport", w.isClosed)
		}
	})
	return one, two, wires
}

func randomBytes(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	p := make([]byte, n)
	_, _ = r.Read(p) // never fails
	return p
}

// write writes to a stream. It may be called in any goroutine.
func write(t *testing.T, c *stream.Conn, p []byte) {
	t.Helper()
	_, err := c.Write(p)
	succeeds(t, err)
}

func succeeds(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func TestBytesArriveInBothDirectionsAndEndInHalves(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 100, 64 << 10, 64<<10 + 1, 10 << 20} {
		one, two, _ := pair(t, stream.Config{}, stream.Config{})
		up, down := randomBytes(size), randomBytes(size/2)
		go func() {
			write(t, one, up)
			succeeds(t, one.CloseWrite())
		}()
		got, err := io.ReadAll(two)
		if err != nil || !bytes.Equal(got, up) {
			t.Fatalf("%d bytes: got %d, %v", size, len(got), err)
		}
		go func() {
			write(t, two, down)
			succeeds(t, two.Close())
		}()
		if got, err = io.ReadAll(one); err != nil || !bytes.Equal(got, down) {
			t.Fatalf("%d bytes back: got %d, %v", size/2, len(got), err)
		}
		for _, c := range []*stream.Conn{one, two} {
			select {
			case <-c.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("the stream does not end")
			}
			if err := c.Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestSmallWritesArriveInOrder(t *testing.T) {
	t.Parallel()
	one, two, _ := pair(t, stream.Config{}, stream.Config{})
	want := randomBytes(20_000)
	go func() {
		for i := range want {
			write(t, one, want[i:i+1])
		}
		succeeds(t, one.Close())
	}()
	got, err := io.ReadAll(two)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got %d bytes, %v", len(got), err)
	}
}

func TestCopiesArriveWhole(t *testing.T) {
	t.Parallel()
	one, two, _ := pair(t, stream.Config{}, stream.Config{MaxWindow: 1 << 20})
	want := randomBytes(3 << 20)
	go func() {
		_, err := one.ReadFrom(iotest.HalfReader(bytes.NewReader(want)))
		succeeds(t, err)
		succeeds(t, one.CloseWrite())
	}()
	var got bytes.Buffer
	if n, err := two.WriteTo(&got); err != nil || n != int64(len(want)) || !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("%d bytes arrived, %v", n, err)
	}
	if _, err := two.ReadFrom(iotest.ErrReader(io.ErrNoProgress)); err != io.ErrNoProgress {
		t.Errorf("the error of the reader became %v", err)
	}
}

// closing closes a stream while the stream writes to it.
type closing struct{ of *stream.Conn }

func (c closing) Write(p []byte) (int, error) { return len(p), c.of.Close() }

func TestACloseEndsACopy(t *testing.T) {
	t.Parallel()
	one, two, _ := pair(t, stream.Config{}, stream.Config{})
	write(t, one, randomBytes(100_000))
	if _, err := two.WriteTo(closing{two}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the copy ended with %v", err)
	}
	n, err := one.Write(randomBytes(2 << 20)) // the closed end drops it, and then stops the writer
	if err != nil && protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("%d bytes were written, %v", n, err)
	}
}

func TestConcurrentWritesDoNotMix(t *testing.T) {
	t.Parallel()
	const size, writers, window = 10_000, 8, 4096 // each write waits for room, and others could come between
	one, two, _ := pair(t, stream.Config{Frame: 1000, Window: window, PeerWindow: window},
		stream.Config{Window: window})
	for i := range byte(writers) {
		go write(t, one, bytes.Repeat([]byte{i}, size))
	}
	got := make([]byte, size)
	for range writers {
		if _, err := io.ReadFull(two, got); err != nil || !bytes.Equal(got, bytes.Repeat(got[:1], size)) {
			t.Fatalf("writes are mixed, %v", err)
		}
	}
}

func TestAWriterWaitsForASlowReader(t *testing.T) {
	t.Parallel()
	one, two, _ := pair(t, stream.Config{}, stream.Config{})
	if err := one.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := one.Write(make([]byte, 10<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || protocol.CodeOf(err) != protocol.DeadlineExceeded {
		t.Fatalf("the write ended with %v", err)
	}
	if most := 2 * protocol.StreamWindow; n > most {
		t.Fatalf("%d bytes were kept, at most %d should be", n, most)
	}
	succeeds(t, one.SetWriteDeadline(time.Time{}))
	succeeds(t, one.CloseWrite())
	got, err := io.ReadAll(two)
	if err != nil || len(got) != n {
		t.Fatalf("%d of %d bytes arrived, %v", len(got), n, err)
	}
}

func TestAReadDeadlineEndsAWaitingRead(t *testing.T) {
	t.Parallel()
	one, _, _ := pair(t, stream.Config{}, stream.Config{})
	succeeds(t, one.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := one.Read(make([]byte, 1))
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() || !errors.Is(err, protocol.ErrDeadlineExceeded) {
		t.Fatalf("the read ended with %v", err)
	}
}

func TestAResetEndsBothEndsWithItsError(t *testing.T) {
	t.Parallel()
	one, two, _ := pair(t, stream.Config{}, stream.Config{})
	why := &protocol.Error{Code: protocol.NotFound, Reason: protocol.ReasonSandboxDeleted, Field: "path",
		Message: "it is gone"}
	one.Reset(why)
	for _, c := range []*stream.Conn{one, two} {
		_, err := c.Read(make([]byte, 1))
		var got *protocol.Error
		if !errors.As(err, &got) || *got != *why {
			t.Errorf("a read ended with %v", err)
		}
		if _, err = c.Write([]byte("x")); !errors.Is(err, why) {
			t.Errorf("a write ended with %v", err)
		}
	}
}

func TestBytesBeforeAResetAreRead(t *testing.T) {
	t.Parallel()
	one, two, _ := pair(t, stream.Config{}, stream.Config{})
	write(t, one, []byte("hello"))
	one.Reset(errors.New("broken"))
	got, err := io.ReadAll(two)
	if string(got) != "hello" || protocol.CodeOf(err) != protocol.Internal {
		t.Fatalf("read %q, %v", got, err)
	}
}

func TestCloseDeliversWhatWasWrittenAndThenStopsTheOtherEnd(t *testing.T) {
	t.Parallel()
	one, two, _ := pair(t, stream.Config{}, stream.Config{})
	write(t, one, []byte("last words"))
	succeeds(t, one.Close())
	if _, err := one.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read after Close ended with %v", err)
	}
	got, err := io.ReadAll(two)
	if err != nil || string(got) != "last words" {
		t.Fatalf("read %q, %v", got, err)
	}
	eventually.Holds(t, 10*time.Second, "writes of the other end fail", func() bool {
		_, err := two.Write([]byte("x"))
		return protocol.CodeOf(err) == protocol.Cancelled && protocol.AsError(err).Reason == protocol.ReasonStreamClosed
	})
}

func TestAStreamContinuesAfterAReconnect(t *testing.T) {
	t.Parallel()
	cfg := stream.Config{Retry: time.Hour, Ping: time.Hour} // only the reconnect repairs it
	one, two, wires := pair(t, cfg, cfg)
	succeeds(t, one.SetDeadline(time.Now().Add(20*time.Second)))
	succeeds(t, two.SetDeadline(time.Now().Add(20*time.Second)))
	want := randomBytes(4 << 20)
	copied := make(chan []byte)
	go func() {
		got, _ := io.ReadAll(two)
		copied <- got
	}()
	for i := 0; i < len(want); i += len(want) / 8 {
		if i == len(want)/2 {
			wires[0].setCut(true)
			wires[1].setCut(true)
			time.AfterFunc(20*time.Millisecond, func() {
				wires[0].setCut(false)
				wires[1].setCut(false)
				one.Reconnected()
			})
		}
		if _, err := one.Write(want[i : i+len(want)/8]); err != nil {
			t.Fatal(err)
		}
	}
	succeeds(t, one.CloseWrite())
	if got := <-copied; !bytes.Equal(got, want) {
		t.Fatalf("got %d bytes of %d, or others", len(got), len(want))
	}
}

func TestASilentEndIsGivenUp(t *testing.T) {
	t.Parallel()
	cfg := stream.Config{Ping: 10 * time.Millisecond}
	one, two, wires := pair(t, cfg, cfg)
	wires[1].setCut(true)
	_, err := one.Read(make([]byte, 1))
	if protocol.CodeOf(err) != protocol.Unavailable || protocol.AsError(err).Reason != protocol.ReasonStreamLost {
		t.Fatalf("the read ended with %v", err)
	}
	if _, err := two.Read(make([]byte, 1)); err == nil {
		t.Fatal("the other end was not told")
	}
}

func TestAnIdleStreamStaysOpen(t *testing.T) {
	t.Parallel()
	cfg := stream.Config{Ping: 5 * time.Millisecond, Missed: 10_000}
	one, two, wires := pair(t, cfg, cfg)
	eventually.Holds(t, 10*time.Second, "there were 40 pings and pongs", func() bool {
		wires[0].mu.Lock()
		defer wires[0].mu.Unlock()
		return wires[0].sent >= 40
	})
	write(t, one, []byte("x"))
	if n, err := two.Read(make([]byte, 2)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

func TestAnEndWithoutAFirstFrameIsReset(t *testing.T) {
	t.Parallel()
	silent, greeted := newWire(), stream.Config{Greet: true}
	lone := stream.New(silent, stream.Config{FirstFrame: 20 * time.Millisecond, Linger: time.Millisecond})
	_, err := lone.Read(make([]byte, 1))
	if protocol.CodeOf(err) != protocol.DeadlineExceeded {
		t.Fatalf("the read ended with %v", err)
	}
	eventually.Holds(t, 10*time.Second, "the transport is closed", silent.isClosed)
	one, two, _ := pair(t, greeted, stream.Config{FirstFrame: 200 * time.Millisecond})
	succeeds(t, two.SetReadDeadline(time.Now().Add(400*time.Millisecond)))
	if _, err := two.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a stream whose other end greets ended with %v", err)
	}
	succeeds(t, one.Close())
}

func TestTheEndThatOpensGreetsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWire()
	c := stream.New(w, stream.Config{Greet: true})
	defer c.Abandon(nil)
	select {
	case <-w.to:
	case <-time.After(10 * time.Second):
		t.Fatal("no greeting came")
	}
}

// TestAnEndThatReadsNoMoreHoldsUpNobody lets one end say that it reads no more. The other end writes more than a
// window.
func TestAnEndThatReadsNoMoreHoldsUpNobody(t *testing.T) {
	t.Parallel()
	one, two, _ := pair(t, stream.Config{}, stream.Config{})
	reading := make(chan error, 1)
	go func() {
		_, err := one.Read(make([]byte, 1))
		reading <- err
	}()
	if err := one.CloseRead(); err != nil {
		t.Fatal(err)
	}
	if err := <-reading; protocol.CodeOf(err) != protocol.FailedPrecondition {
		t.Errorf("the read ended with %v", err)
	}
	_ = two.SetWriteDeadline(time.Now().Add(10 * time.Second)) // returns no error
	if _, err := two.Write(make([]byte, 4<<20)); err != nil {
		t.Error(err)
	}
	if _, err := one.Write([]byte("still")); err != nil {
		t.Error(err)
	}
	if err := one.CloseWrite(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(two); err != nil || string(got) != "still" {
		t.Errorf("got %q, %v", got, err)
	}
}
