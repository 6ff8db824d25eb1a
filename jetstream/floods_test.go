package jetstream_test

import (
	"context"
	"errors"
	"fmt"
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

// held is how many requests of one tenant a coordinator holds: it decides 768 and the others wait.
const held = 768 + 16384

// flooded starts a server that flushes writes late, so that a flood is stored fast, and stores n execs of one tenant.
// refused counts the requests that were refused because the queue was full.
func flooded(t testing.TB, n int) (d *deployment, refused *atomic.Int64) {
	t.Helper()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir(), SyncLazily: true})
	must(t, err)
	d = &deployment{servers: []*embedded.Server{s}, tenant: "t1"}
	t.Cleanup(func() { d.servers[0].Stop() })
	d.provision(t)
	nc := d.raw(t)
	js, err := natsjs.New(nc, natsjs.WithPublishAsyncMaxPending(n))
	must(t, err)
	refused = &atomic.Int64{}
	const inbox = "_INBOX.hostile.mallory.x"
	_, err = nc.Subscribe(inbox, func(m *nats.Msg) {
		r := &protocol.Reply{}
		if protocol.Decode(m.Data, r) == nil && r.Error != nil && r.Error.Reason == protocol.ReasonQueueFull {
			refused.Add(1)
		}
	})
	must(t, err)
	for i := range n {
		m := nats.NewMsg(protocol.UserRequestSubject("hostile", "mallory", protocol.VerbExec, "s"))
		m.Header.Set(protocol.HeaderRequest, fmt.Sprint(i))
		m.Header.Set(protocol.HeaderReply, inbox)
		m.Data = []byte("x") // the message is never decoded
		_, err := js.PublishMsgAsync(m)
		must(t, err)
	}
	receive(t, time.Minute, "the acknowledgement of the flood", js.PublishAsyncComplete())
	return d, refused
}

// The flood is never decided. Requests of others, and requests that end something, pass the flood. Requests that are
// delivered again pass it too: they do not wait in the flood's line, and are not refused.
func TestRequestsPassAFloodOfAnotherTenant(t *testing.T) {
	t.Parallel()
	const more, returned = 500, 20
	d, refused := flooded(t, held+more)
	c := d.opened(t)
	handled := make(chan string, 10)
	full := make(chan struct{})
	var first, again atomic.Int64
	background(t, func(ctx context.Context) error {
		return c.ConsumeRequests(ctx, func(ctx context.Context, r *jetstream.Delivery) error {
			if r.Tenant != "hostile" || r.User != "mallory" || r.Verb != protocol.VerbExec {
				handled <- r.ID
				return nil
			}
			if r.Attempt > 1 {
				again.Add(1)
				return nil
			}
			if first.Add(1) <= returned {
				select {
				case <-full:
					return errors.New("not now")
				case <-ctx.Done():
				}
			}
			<-ctx.Done()
			return ctx.Err()
		})
	})
	eventually.Holds(t, time.Minute, "requests are refused", func() bool { return refused.Load() == more })
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	for id, subject := range map[string]string{
		"another tenant":        protocol.RequestSubject("good", protocol.VerbExec, "s"),
		"an operator":           protocol.UserRequestSubject("hostile", "@root", protocol.VerbExec, "s"),
		"a delete of the flood": protocol.UserRequestSubject("hostile", "mallory", protocol.VerbDelete, "s"),
	} {
		m := nats.NewMsg(subject)
		m.Header.Set(protocol.HeaderRequest, id)
		_, err := js.PublishMsg(t.Context(), m)
		must(t, err)
		if got := receive(t, 20*time.Second, "the request of "+id, handled); got != id {
			t.Errorf("handled %q, want %q", got, id)
		}
	}
	close(full)
	eventually.Holds(t, 20*time.Second, "the returned requests are handled",
		func() bool { return again.Load() == returned })
	if n := refused.Load(); n != more {
		t.Errorf("%d requests were refused, want %d", n, more)
	}
}

// BenchmarkRefusals measures how fast requests are refused because too many requests of their tenant wait.
func BenchmarkRefusals(b *testing.B) {
	const more = 70_000
	for b.Loop() {
		b.StopTimer()
		d, refused := flooded(b, held+more)
		c := d.opened(b)
		done := make(chan struct{})
		ctx, stop := context.WithCancel(b.Context())
		b.StartTimer()
		go func() {
			defer close(done)
			_ = c.ConsumeRequests(ctx, func(ctx context.Context, _ *jetstream.Delivery) error { // ends with ctx
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		eventually.Holds(b, time.Minute, "requests are refused", func() bool { return refused.Load() == more })
		b.StopTimer()
		stop()
		<-done
		b.StartTimer()
	}
	b.ReportMetric(more*float64(b.N)/b.Elapsed().Seconds(), "/s")
}
