package stream_test

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// TestABudgetLimitsManyStreamsAndIsGivenBack lets many streams share a budget that is far too small for their windows.
// Half of them are not read. The others carry bytes both ways.
func TestABudgetLimitsManyStreamsAndIsGivenBack(t *testing.T) {
	t.Parallel()
	const streams, size, most = 40, 1 << 20, 1 << 20
	budget := stream.NewBudget(most)
	var group sync.WaitGroup
	var clients, servers []*stream.Conn
	for i := range streams {
		window := budget.Window(protocol.StreamWindow)
		client, server, _ := pair(t, stream.Config{PeerWindow: window, MaxWindow: 4 << 20},
			stream.Config{Window: window, MaxWindow: 4 << 20, Budget: budget})
		clients, servers = append(clients, client), append(servers, server)
		for _, end := range []*stream.Conn{client, server} {
			must := time.Now().Add(20 * time.Second)
			if i%2 > 0 {
				must = time.Now().Add(300 * time.Millisecond)
			}
			_ = end.SetWriteDeadline(must) // returns no error
			group.Go(func() {
				_, _ = end.Write(randomBytes(size)) // of a stream that is read, the reader checks the length
				_ = end.CloseWrite()
			})
			if i%2 == 0 {
				group.Go(func() {
					if n, err := io.Copy(io.Discard, end); err != nil || n != size {
						t.Errorf("stream %d carried %d bytes, %v", i, n, err)
					}
				})
			}
		}
	}
	group.Wait()
	if used := budget.Used(); used == 0 || used > most {
		t.Errorf("the open streams use %d of %d bytes", used, most)
	}
	for i := range clients {
		clients[i].Reset(nil)
		_ = servers[i].Close() // returns no error
	}
	eventually.Holds(t, 10*time.Second, "everything is given back", func() bool { return budget.Used() == 0 })
}

// TestAShortBudgetDoesNotWaitForLateAcknowledgements carries bytes to an end whose window is large, and which therefore
// acknowledges late, from an end that may keep only a little.
func TestAShortBudgetDoesNotWaitForLateAcknowledgements(t *testing.T) {
	t.Parallel()
	const window, size = 4 << 20, 4 << 20
	one, two, _ := pair(t, stream.Config{MaxWindow: window, Budget: stream.NewBudget(0), PeerWindow: window},
		stream.Config{Window: window})
	began := time.Now()
	go func() {
		_, _ = one.Write(randomBytes(size)) // the reader checks the length
		_ = one.CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, two); err != nil || n != size {
		t.Errorf("%d bytes arrived, %v", n, err)
	}
	const late = size / (16 << 10) * 40 * time.Millisecond // if each acknowledgement were late
	if took := time.Since(began); took > late/4 {
		t.Errorf("%d bytes took %s", size, took)
	}
}
