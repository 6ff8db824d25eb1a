package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// echoes answers every kind of request that the tests send:
//
//	result  the request's bytes, without a stream
//	echo    a stream that sends back what it receives
//	source  a stream that sends as many MiB as the request has bytes
//	sink    a stream that reads everything and sends nothing
//	hold    a stream that does nothing until it ends
func echoes(ctx context.Context, r *jetstream.StreamRequest) (*jetstream.StreamAnswer, error) {
	serve := map[string]func(context.Context, *stream.Conn) error{
		"echo": func(_ context.Context, c *stream.Conn) error { return second(io.Copy(c, c)) },
		"sink": func(_ context.Context, c *stream.Conn) error { return second(io.Copy(io.Discard, c)) },
		"hold": func(ctx context.Context, _ *stream.Conn) error { <-ctx.Done(); return ctx.Err() },
		"source": func(_ context.Context, c *stream.Conn) error {
			return second(c.Write(streamBytes(len(r.Open.Request) << 20)))
		},
	}[r.Open.Kind]
	switch {
	case r.Open.Kind == "result":
		return &jetstream.StreamAnswer{Result: r.Open.Request}, nil
	case r.Open.Kind == "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	case r.Open.Kind == "late":
		return answersLate(ctx, r)
	case serve == nil:
		return nil, protocol.Invalid("kind", "unknown: %s", r.Open.Kind)
	}
	return &jetstream.StreamAnswer{Serve: serve, Result: []byte(r.Tenant + "." + r.Sandbox)}, nil
}

func second[T any](_ T, err error) error { return err }

func streamBytes(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(p) // never fails
	return p
}

// serveStreams serves the streams of worker w1 until the test ends.
func serveStreams(t testing.TB, c *jetstream.Conn, limits jetstream.StreamLimits) {
	t.Helper()
	serveStreamsAs(t, c, "w1", limits)
}

func serveStreamsAs(t testing.TB, c *jetstream.Conn, worker string, limits jetstream.StreamLimits) {
	t.Helper()
	serving := make(chan struct{})
	background(t, func(ctx context.Context) error {
		return c.ServeStreams(ctx, worker, echoes, limits, func() { close(serving) })
	})
	receive(t, 20*time.Second, "the service", serving)
}

// ownWorker serves streams, and returns a target with a worker that no other test has: tests share a cluster, and two
// workers with one name would both answer.
func ownWorker(t testing.TB, d *deployment) jetstream.StreamTarget {
	t.Helper()
	to := target(d)
	to.Worker = "w-" + d.tenant
	serveStreamsAs(t, d.conn(t), to.Worker, jetstream.StreamLimits{})
	return to
}

func target(d *deployment) jetstream.StreamTarget {
	return jetstream.StreamTarget{Tenant: d.tenant, Worker: "w1", Sandbox: "s1"}
}

func opening(kind string, request string) protocol.StreamOpen {
	return protocol.StreamOpen{Kind: kind, Timeout: protocol.Duration(20 * time.Second), Request: []byte(request)}
}

func openStream(t testing.TB, c *jetstream.Conn, to jetstream.StreamTarget, o protocol.StreamOpen) *stream.Conn {
	t.Helper()
	conn, _, err := c.OpenStream(t.Context(), to, o)
	must(t, err)
	t.Cleanup(func() { conn.Reset(nil) })
	return conn
}

// echoed sends bytes through an echo and checks that they come back.
func echoed(conn *stream.Conn, size int) error {
	want := streamBytes(size)
	go func() {
		// The reader below notices what was not written.
		_, _ = conn.Write(want)
		_ = conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err == nil && !bytes.Equal(got, want) {
		err = errors.New("other bytes came back")
	}
	return err
}

func TestAnOperationWithoutBytesIsAnsweredInTheReply(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		to := ownWorker(t, d)
		conn, reply, err := d.conn(t).OpenStream(t.Context(), to, opening("result", "hello"))
		must(t, err)
		if conn != nil || string(reply.Result) != "hello" {
			t.Fatalf("got %v, %q", conn, reply.Result)
		}
	})
}

func TestAStreamEchoes(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		to := ownWorker(t, d)
		c := d.conn(t)
		for _, bulk := range []bool{false, true} {
			for _, size := range []int{0, 1, 5 << 20} {
				o := opening("echo", "")
				o.Bulk = bulk
				conn, reply, err := c.OpenStream(t.Context(), to, o)
				must(t, err)
				if string(reply.Result) != d.tenant+".s1" {
					t.Fatalf("the handler was told %q", reply.Result)
				}
				must(t, echoed(conn, size))
				must(t, conn.Close())
			}
		}
	})
}
