package jetstream_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/stream"
)

// comparing is a writer that compares what it gets with the bytes that were sent.
type comparing struct {
	sent io.Reader
	at   int64
	all  *atomic.Int64 // bytes of all streams
}

func (c *comparing) Write(p []byte) (int, error) {
	want := make([]byte, len(p))
	if n, err := io.ReadFull(c.sent, want); err != nil || !bytes.Equal(p, want) {
		return 0, fmt.Errorf("other bytes came back between %d and %d, or more than %d: %w", c.at, c.at+int64(len(p)),
			c.at+int64(n), err)
	}
	c.at += int64(len(p))
	c.all.Add(int64(len(p)))
	return len(p), nil
}

// echoedBytes sends size bytes through an echo, and compares them while they come back. Each seed has other bytes.
func echoedBytes(conn *stream.Conn, seed byte, size int64, all *atomic.Int64) error {
	bytesOf := func() io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{seed}), size) }
	go func() {
		// The reader below notices what was not written.
		_, _ = io.Copy(conn, bytesOf())
		_ = conn.CloseWrite()
	}()
	n, err := io.Copy(&comparing{sent: bytesOf(), all: all}, conn)
	if err == nil && n != size {
		err = fmt.Errorf("%d of %d bytes came back", n, size)
	}
	return err
}

// TestStreamsSurviveAStormOfReconnects cuts the connections of the client and those of the worker in turn, again and
// again, while plain and bulk streams carry bytes in both directions. It does not run in parallel, because it counts
// goroutines.
func TestStreamsSurviveAStormOfReconnects(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("use", func(t *testing.T) {
		const streams, size, cuts = 20, 8 << 20, 2 * 30
		d := startServer(t, jetstream.Assets{})
		links := []*proxy{throughProxy(t, d), throughProxy(t, d)}
		serveStreams(t, d.connTo(t, links[0].url()), jetstream.StreamLimits{})
		c := d.connTo(t, links[1].url())
		var all atomic.Int64
		ended := make(chan error, streams)
		for i := range streams {
			o := opening("echo", "")
			o.Bulk = i%2 == 0
			conn := openStream(t, c, target(d), o)
			go func() { ended <- echoedBytes(conn, byte(i), size, &all) }()
		}
		began := time.Now()
		for i := range cuts {
			eventually.Holds(t, 60*time.Second, fmt.Sprintf("bytes come back after %d cuts", i), func() bool {
				return len(ended) == streams || all.Load() > int64(i)*streams*size/cuts
			})
			links[i%2].cut()
		}
		for range streams {
			must(t, receive(t, 60*time.Second, "the end of a stream", ended))
		}
		t.Logf("%d streams of %d MiB and %d cuts took %s", streams, size>>20, cuts, time.Since(began).Round(time.Millisecond))
		eventually.Holds(t, 20*time.Second, "the streams have closed their subscriptions", func() bool {
			return c.OpenStreams() == 0
		})
	})
	goleak.VerifyNone(t, before)
}
