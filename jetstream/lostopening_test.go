package jetstream_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// TestARequestThatIsLostWithItsWorkerEndsSoon sends a request to a worker that dies before it answers. Another worker
// of the same name serves from then on, or none does.
func TestARequestThatIsLostWithItsWorkerEndsSoon(t *testing.T) {
	t.Parallel()
	for what, limit := range map[string]time.Duration{"restarted": 8 * time.Second, "gone": 35 * time.Second} {
		for kind, bulk := range map[string]bool{"plain": false, "bulk": true} {
			t.Run(what+" "+kind, func(t *testing.T) {
				t.Parallel()
				d := startServer(t, jetstream.Assets{})
				worker := d.raw(t)
				requests := make(chan *nats.Msg, 1)
				sub, err := worker.Subscribe("boxfleet.v1.stream.open.w1.*.*.*", func(m *nats.Msg) { requests <- m })
				must(t, err)
				must(t, worker.Flush())
				ended := make(chan error, 1)
				c := d.conn(t)
				go func() {
					o := opening("echo", "")
					o.Timeout, o.Bulk = protocol.Duration(2*time.Minute), bulk
					_, _, err := c.OpenStream(t.Context(), target(d), o)
					ended <- err
				}()
				receive(t, 10*time.Second, "the request", requests)
				must(t, sub.Unsubscribe())
				must(t, worker.Flush())
				if what == "restarted" {
					serveStreams(t, d.conn(t), jetstream.StreamLimits{})
				}
				wantError(t, receive(t, limit, "the end of the opening", ended), protocol.Unavailable,
					protocol.ReasonStreamLost)
			})
		}
	}
}

// TestASlowAnswerIsAwaited asks workers that answer late: one whose streams are all in use, so that it refuses
// everything but questions, and one of a version that knows no questions.
func TestASlowAnswerIsAwaited(t *testing.T) {
	t.Parallel()
	late := func(t *testing.T, d *deployment, after time.Duration) {
		t.Helper()
		began := time.Now()
		o := opening("late", after.String())
		o.Timeout = protocol.Duration(2 * time.Minute)
		_, reply, err := d.conn(t).OpenStream(t.Context(), target(d), o)
		must(t, err)
		if took := time.Since(began); string(reply.Result) != "late" || took < after {
			t.Errorf("answered with %q after %s", reply.Result, took)
		}
	}
	t.Run("this version", func(t *testing.T) {
		t.Parallel()
		d := startServer(t, jetstream.Assets{})
		serveStreams(t, d.conn(t), jetstream.StreamLimits{Worker: 1})
		late(t, d, 6*time.Second) // two questions
	})
	t.Run("an earlier version", func(t *testing.T) {
		t.Parallel()
		d := startServer(t, jetstream.Assets{})
		w := d.raw(t)
		const after = 26 * time.Second // longer than a worker may leave questions unanswered
		answer := func(m *nats.Msg, text string) {
			reply := nats.NewMsg(m.Reply)
			reply.Header.Set("Content-Type", "application/json")
			reply.Data = []byte(text)
			_ = w.PublishMsg(reply) // the client notices a missing answer
		}
		_, err := w.Subscribe("boxfleet.v1.stream.open.w1.*.*.*", func(m *nats.Msg) {
			if strings.Contains(string(m.Data), protocol.StreamKindProbe) {
				answer(m, `{"v":1,"error":{"code":"invalid_argument","reason":"unsupported","message":"no"}}`)
				return
			}
			time.AfterFunc(after, func() { answer(m, `{"v":1,"result":"bGF0ZQ=="}`) })
		})
		must(t, err)
		must(t, w.Flush())
		late(t, d, after)
	})
}

// answersLate answers when the time that the request names has passed.
func answersLate(ctx context.Context, r *jetstream.StreamRequest) (*jetstream.StreamAnswer, error) {
	after, err := time.ParseDuration(string(r.Open.Request))
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(after):
		return &jetstream.StreamAnswer{Result: []byte("late")}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
