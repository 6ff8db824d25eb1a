package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/stream"
)

// stallingDialer makes connections that do not read while the dialer stalls. The bytes then wait in the kernel's small
// buffers and in the server.
type stallingDialer struct {
	mu    sync.Mutex
	gate  chan struct{} // closed while connections read
	conns []*net.TCPConn
}

func newStallingDialer() *stallingDialer {
	d := &stallingDialer{gate: make(chan struct{})}
	close(d.gate)
	return d
}

// Dial implements the interface CustomDialer of the NATS library.
func (d *stallingDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, conn.(*net.TCPConn))
	return &stallingConn{conn, d}, nil
}

// stall stops all reading, until the returned function is called.
func (d *stallingDialer) stall() (release func()) {
	gate := make(chan struct{})
	d.mu.Lock()
	d.gate = gate
	conns := d.conns
	d.mu.Unlock()
	buffers := func(size int) {
		for _, conn := range conns {
			_ = conn.SetReadBuffer(size) // fails only for a connection that is closed
		}
	}
	buffers(4 << 10) // the server then has to hold back the bytes
	return sync.OnceFunc(func() {
		buffers(1 << 20)
		close(gate)
	})
}

type stallingConn struct {
	net.Conn
	dialer *stallingDialer
}

func (c *stallingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.dialer.mu.Lock()
	gate := c.dialer.gate
	c.dialer.mu.Unlock()
	<-gate
	return n, err
}

// TestAClientThatTheServerCutsOffLosesNoBytes lets a client not read from its socket until the server calls it a slow
// consumer and closes its connection, because too much waits for it, or because a write takes too long.
func TestAClientThatTheServerCutsOffLosesNoBytes(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*server.Options){
		"max_pending":    func(o *server.Options) { o.MaxPending = 2 << 20 },
		"write_deadline": func(o *server.Options) { o.WriteDeadline = time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startPlain(t, set)
			d := &deployment{tenant: "t1"}
			serveStreams(t, d.connTo(t, s.ClientURL()), jetstream.StreamLimits{Sandbox: 200})
			dialer := newStallingDialer()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			c, err := jetstream.Connect(ctx, jetstream.Config{URL: s.ClientURL(), Logger: quiet,
				Options: func(o *nats.Options) { o.CustomDialer = dialer }})
			must(t, err)
			t.Cleanup(c.Close)
			cutOff(t, s, c, d, dialer)
		})
	}
}

// cutOff makes the server cut off the client c in the middle of many transfers.
func cutOff(t *testing.T, s *server.Server, c *jetstream.Conn, d *deployment, dialer *stallingDialer) {
	t.Helper()
	const count = 64 // with a window of 256 KiB each, they send more than the server and the kernel hold back
	bulk := opening("source", "12345678")
	bulk.Bulk = true
	conns := []*stream.Conn{openStream(t, c, target(d), bulk)}
	for range count {
		conns = append(conns, openStream(t, c, target(d), opening("source", "1")))
	}
	release := dialer.stall()
	defer release()
	ended := make(chan error, len(conns))
	for i, conn := range conns {
		size := 1 << 20
		if i == 0 {
			size = 8 << 20
		}
		go func() { ended <- arrives(conn, size) }()
	}
	eventually.Holds(t, 30*time.Second, "the server has cut off the client",
		func() bool { return s.NumSlowConsumers() > 0 })
	other := openStream(t, d.connTo(t, s.ClientURL()), target(d), opening("echo", ""))
	must(t, other.SetDeadline(time.Now().Add(20*time.Second)))
	must(t, echoed(other, 4<<20)) // nobody else waits for the client
	release()
	for range conns {
		must(t, receive(t, 60*time.Second, "the end of a transfer", ended))
	}
	t.Logf("the server cut off %d connections", s.NumSlowConsumers())
}

// arrives reads a stream to its end.
func arrives(conn *stream.Conn, size int) error {
	got, err := io.ReadAll(conn)
	if err == nil && !bytes.Equal(got, streamBytes(size)) {
		err = errors.New("other bytes arrived")
	}
	return err
}

// TestFramesThatTheClientDropsAreSentAgain lets more frames wait in the client than the NATS library keeps for a
// subscription.
func TestFramesThatTheClientDropsAreSentAgain(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	c := d.conn(t)
	dropping := openStream(t, c, target(d), opening("source", "12345678"))
	dropped, release := c.HoldFrames(2)
	defer release()
	ended := make(chan error, 1)
	go func() { ended <- arrives(dropping, 8<<20) }()
	eventually.Holds(t, 20*time.Second, "the library drops frames", func() bool { return dropped() > 0 })
	other := openStream(t, c, target(d), opening("echo", "")) // on the same connection
	must(t, other.SetDeadline(time.Now().Add(20*time.Second)))
	must(t, echoed(other, 4<<20))
	t.Logf("the library dropped %d frames", dropped())
	release()
	must(t, receive(t, 60*time.Second, "the end of the transfer", ended))
}
