package streams

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/attach"
)

// history records the events that the streams of one sandbox cause.
type history struct {
	ttl    time.Duration
	fails  int // how many appends fail first
	events int
	sum    protocol.StreamUse
	most   int // entries in one event
}

func (h *history) ExecInput(context.Context, string) (string, bool, error) { return "", false, nil }

func (h *history) Reach(context.Context, string) (*attach.Attachment, error) { return nil, nil }
func (h *history) Left() *protocol.Error                                     { return nil }
func (h *history) IdleTTL() time.Duration                                    { return h.ttl }

func (h *history) Used(_ context.Context, uses []protocol.StreamUse) error {
	if h.fails > 0 {
		h.fails--
		return errors.New("NATS is away")
	}
	h.events++
	h.most = max(h.most, len(uses))
	for _, u := range uses {
		h.sum = sum(h.sum, u)
	}
	return nil
}

// record counts streams for a minute, each of which is open for a while, and returns after the last event. It runs in a
// bubble of synctest, whose time passes at once.
func record(t *testing.T, h *history, streams int, open time.Duration) {
	s := newUses(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		s.run(ctx, ended)
	}()
	for i := range streams {
		c := &Call{sandbox: h, target: target{kind: "dial", address: strconv.Itoa(i), told: true}}
		end := s.begin(c)
		c.Sent(1)
		time.Sleep(open)
		end()
		time.Sleep(max(time.Minute/time.Duration(streams)-open, 0))
	}
	cancel()
	close(ended)
	<-told
	if h.sum.Opened != streams || h.sum.Closed != streams || h.sum.Sent != int64(streams) {
		t.Errorf("the history tells of %+v, want %d streams", h.sum, streams)
	}
}

func TestManyStreamsMakeFewEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{fails: 2}
		record(t, h, 1000, 0)
		if h.events > 8 || h.most > protocol.MaxStreamUses {
			t.Errorf("1000 streams in a minute made %d events, of at most %d entries", h.events, h.most)
		}
	})
}

func TestAnOpenStreamIsToldBeforeTheSandboxIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{ttl: 3 * time.Second}
		record(t, h, 1, time.Minute)
		if h.events < 50 || h.events > 65 {
			t.Errorf("an open stream made %d events in a minute, with an idle_ttl of %s", h.events, h.ttl)
		}
	})
}
