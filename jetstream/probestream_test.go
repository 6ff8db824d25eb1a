package jetstream_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const probeOf = `{"v":1,"id":"` + handID + `","kind":"probe","timeout":"10s"}`

// dying opens streams as a worker, answers pings, and is then killed.
type dying struct {
	conn *nats.Conn
	subs []*nats.Subscription
	pong chan struct{} // a client has its first pong
}

func dyingWorker(t *testing.T, d *deployment) *dying {
	t.Helper()
	w := &dying{conn: d.raw(t), pong: make(chan struct{}, 64)}
	w.subscribe(t, "boxfleet.v1.stream.open.w1.*.*.*", func(m *nats.Msg) {
		answer := nats.NewMsg(m.Reply)
		answer.Header.Set("Content-Type", "application/json")
		answer.Data = []byte(`{"v":1,"stream":true}`)
		_ = w.conn.PublishMsg(answer) // the client notices a missing answer
	})
	w.subscribe(t, "boxfleet.v1.stream.up.w1.>", func(m *nats.Msg) {
		if m.Data[0] != 5 {
			return
		}
		m.Data[0] = 6 // a pong has the layout of a ping
		_ = w.conn.Publish(strings.Replace(m.Subject, ".up.", ".down.", 1), m.Data)
		w.pong <- struct{}{}
	})
	must(t, w.conn.Flush())
	return w
}

func (w *dying) subscribe(t *testing.T, subject string, f nats.MsgHandler) {
	t.Helper()
	sub, err := w.conn.Subscribe(subject, f)
	must(t, err)
	w.subs = append(w.subs, sub)
}

func (w *dying) kill(t *testing.T) {
	t.Helper()
	receive(t, 10*time.Second, "the answer to a ping", w.pong)
	for _, sub := range w.subs {
		must(t, sub.Unsubscribe())
	}
	must(t, w.conn.Flush())
}

// TestARestartedWorkerIsNoticedSoon kills a worker, and starts another worker with the same name. Clients that wait and
// clients that send must both notice.
func TestARestartedWorkerIsNoticedSoon(t *testing.T) {
	t.Parallel()
	for what, bulk := range map[string]bool{"plain": false, "bulk": true} {
		for does, limit := range map[string]time.Duration{"reads": 12 * time.Second, "writes": 6 * time.Second} {
			t.Run(what+" "+does, func(t *testing.T) {
				t.Parallel()
				d := startServer(t, jetstream.Assets{})
				worker := dyingWorker(t, d)
				o := opening("hold", "")
				o.Bulk = bulk
				conn := openStream(t, d.conn(t), target(d), o)
				worker.kill(t)
				serveStreams(t, d.conn(t), jetstream.StreamLimits{})
				began := time.Now()
				if does == "writes" {
					_, err := conn.Write(make([]byte, 1000))
					must(t, err)
				}
				_, err := conn.Read(make([]byte, 1))
				wantError(t, err, protocol.Unavailable, protocol.ReasonStreamLost)
				if took := time.Since(began); took > limit {
					t.Errorf("the client noticed after %s", took)
				}
			})
		}
	}
}

// TestAProbeTellsOnlyOfTheAskersStreams asks with the ID of another user's, tenant's and sandbox's stream, and while
// the worker has as many streams as it may have.
func TestAProbeTellsOnlyOfTheAskersStreams(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{Worker: 1})
	h := byHand(t, d, handID)
	if got := h.ask(t, strings.Replace(probeOf, handID, "short", 1)); !strings.Contains(got, `"field":"id"`) {
		t.Errorf("a probe with a bad ID: %s", got)
	}
	if got := h.ask(t, probeOf); isOpen(t, got) {
		t.Errorf("before the stream was opened: %s", got)
	}
	if got := h.ask(t, `{"v":1,"id":"`+handID+`","kind":"hold","timeout":"10s"}`); !isOpen(t, got) {
		t.Fatalf("the opening: %s", got)
	}
	if got := h.ask(t, probeOf); !isOpen(t, got) {
		t.Errorf("the stream is open, and the worker says: %s", got)
	}
	for _, subject := range []string{d.tenant + ".@.s2", d.tenant + ".anna.s1", "other.@.s1"} {
		m := nats.NewMsg("boxfleet.v1.stream.open.w1." + subject)
		m.Header.Set("Content-Type", "application/json")
		m.Data = []byte(probeOf)
		answer, err := h.RequestMsg(m, 200*time.Millisecond)
		if err == nil && isOpen(t, string(answer.Data)) {
			t.Errorf("%s: %s", subject, answer.Data)
		}
	}
	h.send(t, 4, []byte("cancelled\x00\x00\x00"))
	within, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for isOpen(t, h.ask(t, probeOf)) {
		must(t, within.Err())
	}
}

func isOpen(t *testing.T, answer string) bool {
	t.Helper()
	var r protocol.StreamReply
	must(t, json.Unmarshal([]byte(answer), &r))
	return r.Error == nil && r.Stream
}

// TestAStreamOfAnOlderWorkerStays leaves pings unanswered for longer than a client waits before it asks. The worker
// knows no probes.
func TestAStreamOfAnOlderWorkerStays(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	w := d.raw(t)
	_, err := w.Subscribe("boxfleet.v1.stream.open.w1.*.*.*", func(m *nats.Msg) {
		answer := nats.NewMsg(m.Reply)
		answer.Header.Set("Content-Type", "application/json")
		if answer.Data = []byte(`{"v":1,"stream":true}`); strings.Contains(string(m.Data), "probe") {
			answer.Data = []byte(`{"v":1,"error":{"code":"invalid_argument","reason":"unsupported","message":"no"}}`)
		}
		_ = w.PublishMsg(answer) // the client notices a missing answer
	})
	must(t, err)
	pings := make(chan []byte, 64)
	_, err = w.Subscribe("boxfleet.v1.stream.up.>", func(m *nats.Msg) { pings <- m.Data })
	must(t, err)
	must(t, w.Flush())
	conn := openStream(t, d.conn(t), target(d), opening("hold", ""))
	const asks = 5 // pings that stay unanswered: seconds of silence
	for range asks {
		if got := receive(t, 20*time.Second, "a ping", pings); got[0] != 5 {
			t.Fatalf("the client sends %x", got)
		}
	}
	must(t, conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
	if _, err := conn.Read(make([]byte, 1)); protocol.CodeOf(err) != protocol.DeadlineExceeded {
		t.Errorf("the stream ended with %v", err)
	}
}
