package coordinator

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// flood is many requests of the user mallory of the tenant hostile, and their answers.
type flood struct {
	js       natsjs.JetStream
	requests int
	decided  atomic.Int64 // how many requests were decided
	refused  atomic.Int64 // how many requests were refused because the queue was full

	mu      sync.Mutex
	answers map[string][]string // the reason or code of each answer, keyed by the id of the request
}

const floodInbox = "_INBOX.hostile.mallory."

// newFloodedDeployment starts a server that flushes writes late, so that a flood is stored fast.
func newFloodedDeployment(t *testing.T) (*deployment, *flood) {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), SyncLazily: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	d := &deployment{t: t, server: server}
	d.conn = d.connect("test")
	nc, err := nats.Connect("", nats.InProcessServer(server))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	f := &flood{answers: map[string][]string{}}
	if f.js, err = natsjs.New(nc, natsjs.WithPublishAsyncMaxPending(100_000)); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe(floodInbox+"*", f.hear); err != nil {
		t.Fatal(err)
	}
	return d, f
}

func (f *flood) hear(m *nats.Msg) {
	r := &protocol.Reply{}
	err := protocol.Decode(m.Data, r)
	if err == nil && r.Error != nil {
		err = r.Error
	}
	what := "accepted"
	if why := protocol.AsError(err); why != nil {
		what = string(why.Code) + " " + why.Reason
	}
	if what == queueFull {
		f.refused.Add(1)
	} else {
		f.decided.Add(1)
	}
	id := strings.TrimPrefix(m.Subject, floodInbox)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[id] = append(f.answers[id], what)
}

// send stores n requests in the queue: execs in a sandbox that does not exist.
func (f *flood) send(n int) error {
	payload := protocol.Encode(&protocol.Request{Version: protocol.Version, ExecID: "x",
		Exec: &protocol.ExecSpec{Command: []string{"true"}}})
	var stored []natsjs.PubAckFuture
	for range n {
		f.requests++
		id := fmt.Sprint("f", f.requests)
		m := nats.NewMsg(protocol.UserRequestSubject("hostile", "mallory", protocol.VerbExec, "none"))
		m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
		m.Header.Set(protocol.HeaderRequest, id)
		m.Header.Set(protocol.HeaderReply, floodInbox+id)
		m.Data = payload
		ack, err := f.js.PublishMsgAsync(m)
		if err != nil {
			return err
		}
		stored = append(stored, ack)
	}
	for _, ack := range stored {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		case <-time.After(time.Minute):
			return fmt.Errorf("the server does not store the flood")
		}
	}
	return nil
}

const (
	notFound  = string(protocol.NotFound) + " "
	queueFull = string(protocol.ResourceExhausted) + " " + protocol.ReasonQueueFull
)

// check waits until each request has an answer. A request may be refused because the queue is full, but only before it
// is decided.
func (f *flood) check(d *deployment) {
	d.t.Helper()
	eventually.Holds(d.t, time.Minute, "each request of the flood is answered", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.answers) == f.requests
	})
	d.eventually("the queue is empty", func() bool { return d.messages(protocol.StreamRequests) == 0 })
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, answers := range f.answers {
		for i, what := range answers {
			if what != notFound && (what != queueFull || i > 0) {
				d.t.Errorf("request %s is answered with %q", id, answers)
			}
		}
	}
}

// The test counts decisions instead of seconds, since the machine may be busy.
func TestAFloodOfOneTenantsRequestsDelaysNoOtherTenant(t *testing.T) {
	t.Parallel()
	d, f := newFloodedDeployment(t)
	defer d.coordinator("k1", Timing{})()
	d.ready("a")
	answers, err := d.conn.Answers()
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	execs := 0
	exec := func(when string) {
		t.Helper()
		execs++
		x := fmt.Sprint("x", execs)
		began, before := time.Now(), f.decided.Load()
		r := d.ask(answers, protocol.VerbExec, "a", x,
			protocol.Request{ExecID: x, Exec: &protocol.ExecSpec{Command: []string{"true"}}}).hears(t)
		if r.Error != nil {
			t.Fatalf("an exec of another tenant %s the flood: %v", when, r.Error)
		}
		after := f.decided.Load() - before
		t.Logf("an exec of another tenant %s the flood was accepted after %s and %d decisions", when, time.Since(began),
			after)
		if after > 5000 {
			t.Errorf("an exec of another tenant %s the flood waited for %d decisions, want at most 5000", when, after)
		}
	}
	sent := make(chan error, 1)
	go func() { sent <- f.send(30_000) }()
	d.eventually("the flood has begun", func() bool { return f.decided.Load() > 0 })
	exec("during")
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	for range 3 {
		exec("after")
	}
	if f.refused.Load() == 0 {
		t.Error("no request of the flood was refused because the queue was full")
	}
}

// A coordinator loses its connection in the middle of a flood. Another one decides or refuses the requests that the
// first one held.
func TestP1_ACoordinatorThatDiesInAFloodLosesNoRequest(t *testing.T) {
	t.Parallel()
	d, f := newFloodedDeployment(t)
	broken := &line{server: d.server}
	stop := d.run(Config{Name: "k1", Conn: d.connectAs(jetstream.Config{InProcess: broken, Name: "k1"})})
	defer stop()
	defer d.coordinator("k2", Timing{})()
	if err := f.send(6_000); err != nil {
		t.Fatal(err)
	}
	d.eventually("both coordinators have requests", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.answers) > 1000
	})
	broken.setDown(true)
	f.check(d)
}
