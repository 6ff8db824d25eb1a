package jetstream_test

import (
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// BenchmarkStreams measures the throughput of streams beside that of plain NATS messages of the same size, with the
// same windows, in the same run.
func BenchmarkStreams(b *testing.B) {
	d := startServer(b, jetstream.Assets{})
	serveStreams(b, d.conn(b), jetstream.StreamLimits{})
	c := d.conn(b)
	for _, bulk := range []bool{false, true} {
		name, frame, window := "plain", protocol.StreamFrame, protocol.StreamWindow
		if bulk {
			name, frame, window = "bulk", protocol.StreamBulkFrame, protocol.MaxStreamWindow
		}
		b.Run(name+"/stream", func(b *testing.B) {
			o := opening("sink", "")
			o.Bulk = bulk
			writeAll(b, openStream(b, c, target(d), o), frame)
		})
		b.Run(name+"/messages", func(b *testing.B) { publishAll(b, d, frame, window) })
	}
}

func writeAll(b *testing.B, conn *stream.Conn, size int) {
	b.Helper()
	p := streamBytes(size)
	b.SetBytes(int64(size))
	for b.Loop() {
		if _, err := conn.Write(p); err != nil {
			b.Fatal(err)
		}
	}
	must(b, conn.CloseWrite())
	if _, err := io.Copy(io.Discard, conn); err != nil {
		b.Fatal(err)
	}
}

// publishAll sends messages to another connection, which acknowledges each quarter of a window.
func publishAll(b *testing.B, d *deployment, size, window int) {
	b.Helper()
	from, to := d.raw(b), d.raw(b)
	var received, acknowledged int
	room := make(chan struct{}, window/size)
	_, err := to.Subscribe("bench.data", func(*nats.Msg) {
		if received++; (received-acknowledged)*size >= window/4 {
			for range received - acknowledged {
				_ = to.Publish("bench.room", nil) // fails only if the connection is closed
			}
			acknowledged = received
		}
	})
	must(b, err)
	_, err = from.Subscribe("bench.room", func(*nats.Msg) { <-room })
	must(b, err)
	must(b, to.Flush())
	must(b, from.Flush())
	p := streamBytes(size)
	b.SetBytes(int64(size))
	for b.Loop() {
		room <- struct{}{}
		must(b, from.Publish("bench.data", p))
	}
	must(b, from.Flush())
}

// BenchmarkStreamEcho measures the time of one byte there and back, idle and beside a bulk stream that transfers as
// fast as it can.
func BenchmarkStreamEcho(b *testing.B) {
	d := startServer(b, jetstream.Assets{})
	serveStreams(b, d.conn(b), jetstream.StreamLimits{})
	c := d.conn(b)
	echo := openStream(b, c, target(d), opening("echo", ""))
	b.Run("idle", func(b *testing.B) { echoTimes(b, echo) })
	o := opening("sink", "")
	o.Bulk = true
	bulk := openStream(b, c, target(d), o)
	var moved atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p := streamBytes(256 << 10)
		for {
			n, err := bulk.Write(p)
			if moved.Add(int64(n)); err != nil {
				return
			}
		}
	}()
	b.Run("beside-bulk", func(b *testing.B) {
		began, before := time.Now(), moved.Load()
		echoTimes(b, echo)
		b.ReportMetric(float64(moved.Load()-before)/1e6/time.Since(began).Seconds(), "bulk-MB/s")
	})
	bulk.Reset(nil)
	<-ended
}

func echoTimes(b *testing.B, echo *stream.Conn) {
	b.Helper()
	var times []time.Duration
	p := []byte{1}
	for b.Loop() {
		began := time.Now()
		if _, err := echo.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(echo, p); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	for name, at := range map[string]int{"p50-ms": len(times) / 2, "p99-ms": len(times) * 99 / 100} {
		b.ReportMetric(times[at].Seconds()*1000, name)
	}
}

// BenchmarkStreamOpening measures an operation without bytes: one round trip.
func BenchmarkStreamOpening(b *testing.B) {
	d := startServer(b, jetstream.Assets{})
	serveStreams(b, d.conn(b), jetstream.StreamLimits{})
	c := d.conn(b)
	for b.Loop() {
		_, _, err := c.OpenStream(b.Context(), target(d), opening("result", "x"))
		must(b, err)
	}
}
