package streams

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// A piece of an earlier writer that comes after a newer one has asked how much was taken would replace bytes of the
// newer one.
func TestAWriterWaitsForAllEarlierWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{inputs: newInputs()}
		writer := func() *inputWriter {
			w := &inputWriter{call: &Call{server: s}, exec: "x", ended: make(chan struct{})}
			w.open, w.stop = context.WithCancelCause(context.Background())
			return w
		}
		first, second, third := writer(), writer(), writer()
		if err := s.inputs.takeOver(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.inputs.takeOver(gone, second); !errors.Is(err, context.Canceled) {
			t.Fatalf("the second writer got %v", err)
		}
		tookOver := make(chan error, 1)
		go func() { tookOver <- s.inputs.takeOver(t.Context(), third) }()
		synctest.Wait()
		select {
		case <-tookOver:
			t.Error("the third writer writes beside the first one")
		default:
			first.end()
			if err := <-tookOver; err != nil {
				t.Error(err)
			}
		}
		first.end()
		third.end()
		synctest.Wait()
		if len(s.inputs.byExec) > 0 {
			t.Error("a writer is left")
		}
	})
}

func TestStreamsThatStayOpenHaveNoLargeWindows(t *testing.T) {
	for kind, request := range map[string]any{
		protocol.StreamKindDial:  &protocol.StreamDial{Network: "tcp", Address: "localhost:1"},
		protocol.StreamKindStdin: &protocol.StreamStdin{Exec: "x"},
	} {
		c := facing(t, func(*packet.Conn) {})
		c.Open = &protocol.StreamOpen{Kind: kind, Bulk: true, Request: protocol.Encode(request)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := kinds[kind](ctx, c)
		if e := protocol.AsError(err); err == nil || e.Code != protocol.InvalidArgument || e.Field != "bulk" {
			t.Errorf("%s: got %v, want invalid_argument with field bulk", kind, err)
		}
	}
}
