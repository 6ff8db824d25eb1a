package jetstream_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
)

// TestABulkStreamOverAFarLinkNeedsLargerWindows carries bytes in each direction over connections that delay them. With
// its first window, a bulk stream would carry at most that window in each round trip.
func TestABulkStreamOverAFarLinkNeedsLargerWindows(t *testing.T) {
	t.Parallel()
	const oneWay, firstWindow, mebis = 250 * time.Millisecond, 1 << 20, 48
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	c := d.connTo(t, farFrom(t, d, oneWay))
	for _, direction := range []string{"up", "down"} {
		kind, request := "sink", ""
		if direction == "down" {
			kind, request = "source", string(make([]byte, mebis))
		}
		o := opening(kind, request)
		o.Bulk = true
		conn := openStream(t, c, target(d), o)
		began := time.Now()
		if direction == "up" {
			_, err := conn.Write(streamBytes(mebis << 20))
			must(t, err)
			must(t, conn.CloseWrite())
		}
		n, err := io.Copy(io.Discard, conn)
		must(t, err)
		took := time.Since(began)
		if want := int64(mebis) << 20; direction == "down" && n != want {
			t.Errorf("%d of %d bytes arrived", n, want)
		}
		least := time.Duration(mebis<<20/firstWindow) * 2 * oneWay // with the first window
		t.Logf("%s: %d MiB took %s; with the first window, at least %s", direction, mebis, took, least)
		if took > least*3/4 {
			t.Errorf("%s: %d MiB took %s: the window did not grow", direction, mebis, took)
		}
		must(t, conn.Close())
	}
}

// farFrom returns the address of a proxy that delays what passes through it, and otherwise limits nothing.
func farFrom(t testing.TB, d *deployment, oneWay time.Duration) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	u, err := url.Parse(d.servers[0].ClientURL())
	must(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", u.Host)
			if err != nil {
				_ = client.Close() // the client may have closed the connection already
				continue
			}
			all.Go(func() { relayLate(server, client, oneWay) })
			all.Go(func() { relayLate(client, server, oneWay) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // if this fails, Wait does not return
		all.Wait()
	})
	return "nats://" + listener.Addr().String()
}

// relayLate forwards everything after a delay, until one side ends.
func relayLate(to, from net.Conn, delay time.Duration) {
	type piece struct {
		data []byte
		due  time.Time
	}
	under := make(chan piece, 1<<12)
	go func() {
		defer close(under)
		for {
			data := make([]byte, 32<<10)
			n, err := from.Read(data)
			if n > 0 {
				under <- piece{data[:n], time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range under {
		time.Sleep(time.Until(p.due)) // this is the delay
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	_, _ = to.Close(), from.Close() // they may be closed already
	for range under {               // the reader ends, since its connection is closed
	}
}
