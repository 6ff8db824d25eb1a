package jetstream_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// Answers are core messages, which are lost with a server or a connection. A caller with much time must not spend all
// its time waiting for an answer that never arrives.
func TestAQuestionWithALostAnswerIsRepeated(t *testing.T) {
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
	receive(t, 5*time.Second, "the start of the read service", serving)
	p := throughProxy(t, d)
	far := d.connTo(t, p.url())
	must(t, far.Open(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for what, ask := range map[string]func() error{
		"read from the leader": func() error { _, err := far.HistoryTail(ctx, d.tenant, "s1", 0); return err },
		"read in bulk":         func() error { _, err := far.History(ctx, d.tenant, "s1", 0); return err },
		"the read service": func() error {
			_, err := far.Query(ctx, d.tenant, protocol.EndpointPing, &protocol.Query{})
			return err
		},
	} {
		must(t, ask())
		p.mute.Store(true)
		heal := time.AfterFunc(300*time.Millisecond, p.heal)
		began := time.Now()
		must(t, ask())
		took := time.Since(began)
		heal.Stop()
		if took < 300*time.Millisecond || took > 6*time.Second {
			t.Errorf("%s: answered after %s, want between 0.3 s, when answers arrive again, and 6 s", what, took)
		}
	}
}

// A leader that dies may have stored messages without publishing them. The clients of the other servers keep their
// connections when that happens.
func TestOnLossIsCalledForANewLeader(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	leader := func() int {
		return slices.IndexFunc(d.servers, func(s *embedded.Server) bool {
			return s.JetStreamIsStreamLeader("$G", protocol.StreamEvents)
		})
	}
	eventually.Holds(t, 10*time.Second, "the event log has a leader", func() bool { return leader() >= 0 })
	first := leader()
	c := d.connTo(t, d.servers[(first+1)%len(d.servers)].ClientURL())
	lost, reconnected := make(chan struct{}, 100), make(chan struct{}, 100)
	stop, err := c.OnLoss(func() { lost <- struct{}{} })
	must(t, err)
	defer c.OnReconnect(func() { reconnected <- struct{}{} })()
	must(t, c.Flush(t.Context()))
	d.servers[first].Stop()
	receive(t, 20*time.Second, "a call of OnLoss's function", lost)
	eventually.Holds(t, 20*time.Second, "another server leads the event log", func() bool {
		return leader() >= 0 && leader() != first
	})
	if len(reconnected) > 0 {
		t.Fatal("the connection broke, so the test proves nothing")
	}
	stop()
	called := make(chan struct{}, 100)
	stop, err = c.OnLoss(func() { called <- struct{}{} })
	must(t, err)
	defer stop()
	nc := d.raw(t)
	elect := func() { // when elect returns, each function of OnLoss was called at least once
		for range 2 {
			must(t, nc.Publish("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED."+protocol.StreamEvents, nil))
			receive(t, 10*time.Second, "a call of OnLoss's function", called)
		}
	}
	elect()
	for len(lost) > 0 { // empty the channel of the stopped function: one of its calls may have begun before stop
		<-lost
	}
	elect()
	if len(lost) > 0 {
		t.Error("OnLoss called its function after stop")
	}
}

func TestOnLossIsCalledAfterAReconnect(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	lost := make(chan struct{}, 100)
	stop, err := c.OnLoss(func() { lost <- struct{}{} })
	must(t, err)
	defer stop()
	d.restart(t)
	receive(t, 10*time.Second, "a call of OnLoss's function", lost)
}
