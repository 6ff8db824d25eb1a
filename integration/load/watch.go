package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// watch reads the log while it is written, and records the progress of each sandbox that the run creates. All times are
// the store's time stamps.
type watch struct {
	nc   *nats.Conn
	stop func()

	mu    sync.Mutex
	boxes map[string]*life // the key is the id
	broke []string         // rules that the log violates
}

// life is the progress of a created sandbox.
type life struct {
	accepted, assigned, ready, failed time.Time
	assignments, messages             int
	worker, scheduler, reason         string
}

// burstPrefix is the beginning of the ids of the sandboxes that the run creates. No other id begins with it.
const burstPrefix = "burst-"

func newWatch(ctx context.Context, url, creds string) (*watch, error) {
	options := []nats.Option{nats.Name("load-watch"), nats.MaxReconnects(-1)}
	if creds != "" {
		options = append(options, nats.UserCredentials(creds))
	}
	nc, err := nats.Connect(url, options...)
	if err != nil {
		return nil, err
	}
	w := &watch{nc: nc, boxes: map[string]*life{}}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	consumer, err := js.OrderedConsumer(ctx, protocol.StreamEvents,
		jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy})
	if err != nil {
		return nil, err
	}
	consuming, err := consumer.Consume(w.take)
	if err != nil {
		return nil, err
	}
	w.stop = consuming.Stop
	return w, nil
}

func (w *watch) take(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		w.complain(err.Error())
		return
	}
	b, err := protocol.DecodeBatch(m.Data(), meta.Sequence.Stream)
	if err != nil {
		w.complain(err.Error())
		return
	}
	if !strings.HasPrefix(b.Sandbox, burstPrefix) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.boxes[b.Sandbox]
	if l == nil {
		l = &life{}
		w.boxes[b.Sandbox] = l
	}
	l.messages++
	for i := range b.Events {
		l.event(&b.Events[i], meta.Timestamp)
	}
}

func (l *life) event(e *protocol.Event, at time.Time) {
	switch e.Kind {
	case protocol.SandboxAccepted:
		l.accepted = at
	case protocol.SandboxAssigned:
		l.assigned, l.worker, l.scheduler = at, e.Details.Worker, e.Writer
		l.assignments++
	case protocol.SandboxReady:
		l.ready = at
	case protocol.SandboxFailed:
		l.failed, l.reason = at, e.Reason
	}
}

func (w *watch) complain(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broke = append(w.broke, what)
}

// count returns the number of matching sandboxes.
func (w *watch) count(is func(*life) bool) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, l := range w.boxes {
		if is(l) {
			n++
		}
	}
	return n
}

// each calls f with each sandbox.
func (w *watch) each(f func(id string, l *life)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, l := range w.boxes {
		f(id, l)
	}
}

// await waits until n sandboxes match.
func (w *watch) await(ctx context.Context, what string, n int, is func(*life) bool) error {
	return until(ctx, fmt.Sprintf("%d sandboxes are %s", n, what), lookEvery, func() (bool, string, error) {
		now := w.count(is)
		return now >= n, fmt.Sprint(now), nil
	})
}

func isAccepted(l *life) bool { return !l.accepted.IsZero() }
func isAssigned(l *life) bool { return !l.assigned.IsZero() }
func isOver(l *life) bool     { return !l.ready.IsZero() || !l.failed.IsZero() }
