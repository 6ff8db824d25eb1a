package jetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Answers are core messages: a server that dies, or a link that breaks, takes them along. A caller
// with much time must not spend it on waiting for one that never comes.
func TestAQuestionWhoseAnswerIsLostIsAskedAgain(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	readySandbox(t, c, d.tenant, "s1")
	serving := make(chan struct{})
	background(t, func(ctx context.Context) error {
		return c.ServeReads(ctx, "1.2.3", map[string]jetstream.Endpoint{
			protocol.EndpointPing: func(context.Context, string, *protocol.Query) (*protocol.Reply, error) {
				return &protocol.Reply{}, nil
			},
		}, func() { close(serving) })
	})
	receive(t, 5*time.Second, "the service", serving)
	p := throughProxy(t, d)
	far := d.connTo(t, p.url())
	must(t, far.Open(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for what, ask := range map[string]func() error{
		"read from the leader": func() error { _, err := far.HistoryTail(ctx, d.tenant, "s1", 0); return err },
		"read in bulk":         func() error { _, err := far.History(ctx, d.tenant, "s1", 0); return err },
		"the read service":     func() error { _, err := far.Query(ctx, d.tenant, protocol.EndpointPing, &protocol.Query{}); return err },
	} {
		must(t, ask())
		p.mute.Store(true)
		heal := time.AfterFunc(300*time.Millisecond, p.heal)
		began := time.Now()
		must(t, ask())
		took := time.Since(began)
		heal.Stop()
		if took < 300*time.Millisecond || took > 6*time.Second {
			t.Errorf("%s: answered after %s, the first answer was thrown away for 300 ms", what, took)
		}
	}
}
