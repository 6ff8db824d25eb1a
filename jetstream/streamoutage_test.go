package jetstream_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// transfer sends bytes through an echo. It calls halfway when half of them have come back.
func transfer(conn *stream.Conn, size int, halfway func()) error {
	want := streamBytes(size)
	go func() {
		// The reader below notices what was not written.
		_, _ = conn.Write(want)
		_ = conn.CloseWrite()
	}()
	got := make([]byte, 0, size+1)
	part := make([]byte, 32<<10)
	for {
		n, err := conn.Read(part)
		if before := len(got); before < size/2 && before+n >= size/2 {
			halfway()
		}
		got = append(got, part[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("after %d of %d bytes: %w", len(got), size, err)
		}
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes came back instead of %d, or others", len(got), size)
	}
	return nil
}

// transferBoth transfers on a plain and a bulk stream in both directions. In the middle, it calls halfway.
func transferBoth(t *testing.T, c *jetstream.Conn, d *deployment, halfway func()) {
	t.Helper()
	ended, reached := make(chan error, 2), make(chan struct{}, 2)
	for _, bulk := range []bool{false, true} {
		o := opening("echo", "")
		o.Bulk = bulk
		conn := openStream(t, c, target(d), o)
		go func() {
			ended <- transfer(conn, 96<<20, func() { reached <- struct{}{} })
		}()
	}
	receive(t, 60*time.Second, "half of the bytes", reached)
	halfway()
	for range 2 {
		must(t, receive(t, 60*time.Second, "the end of a transfer", ended))
	}
}

// TestStreamsSurviveAKilledServer kills the only server as kill -9 does, while a plain and a bulk stream are in the
// middle of a transfer in both directions, and starts it again.
func TestStreamsSurviveAKilledServer(t *testing.T) {
	t.Parallel()
	ports, err := embedded.FreePorts(1)
	must(t, err)
	cfg := embedded.Config{Dir: t.TempDir(), Name: "n1", Port: ports[0], SyncLazily: true}
	running := startProcess(t, cfg)
	d := &deployment{tenant: "t1"}
	url := fmt.Sprintf("nats://127.0.0.1:%d", ports[0])
	serveStreams(t, d.connTo(t, url), jetstream.StreamLimits{})
	transferBoth(t, d.connTo(t, url), d, func() {
		must(t, running.Process.Kill())
		_ = running.Wait() // fails, because the process was killed
		startProcess(t, cfg)
	})
}

// TestStreamsSurviveAFailOver kills two of three servers, one after the other, so that each connection moves.
func TestStreamsSurviveAFailOver(t *testing.T) {
	t.Parallel()
	p, kill := startProcesses(t)
	serveStreams(t, p.conn(t), jetstream.StreamLimits{})
	c := p.conn(t)
	transferBoth(t, c, p.deployment, func() { kill("n1") })
	transferBoth(t, c, p.deployment, func() { kill("n2") })
}

func TestAnOpeningThatIsCutOffSaysSo(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	c := d.conn(t)
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.OpenStream(t.Context(), target(d), opening("slow", ""))
		ended <- err
	}()
	eventually.Holds(t, 10*time.Second, "the opening ends when the connection is lost", func() bool {
		must(t, c.Reconnect()) // the request may not have been under way yet
		return len(ended) > 0
	})
	wantError(t, <-ended, protocol.Unavailable, "")
}
