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
	"github.com/boxfleet/boxfleet/protocol"
)

func submit(t testing.TB, c *jetstream.Conn, tenant, id, inbox string) {
	t.Helper()
	must(t, c.Submit(t.Context(), tenant, protocol.VerbCreate, "s-"+id, id, inbox, []byte("payload of "+id)))
}

// submitAgain submits a request until the server has it: the client may not know yet that its connection is lost.
func submitAgain(t testing.TB, c *jetstream.Conn, tenant, id string) {
	t.Helper()
	eventually.Holds(t, 20*time.Second, "the request "+id+" is submitted", func() bool {
		err := c.Submit(t.Context(), tenant, protocol.VerbCreate, "s-"+id, id, "", []byte("payload of "+id))
		if err != nil && protocol.CodeOf(err) != protocol.Unavailable {
			t.Fatal(err)
		}
		return err == nil
	})
}

func TestARequestIsDeliveredAnsweredAndRemoved(t *testing.T) {
	conformAlone(t, func(t *testing.T, d *deployment) {
		client, k := d.opened(t), d.opened(t)
		answers, err := client.Answers()
		must(t, err)
		defer answers.Close()
		seen := make(chan *jetstream.Delivery, 10)
		background(t, func(ctx context.Context) error {
			return k.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
				seen <- r
				k.Answer(r, &protocol.Reply{Version: 1, Sequence: 7})
				return nil
			})
		})
		id := "r1"
		inbox, answer, stop := answers.Expect(id)
		defer stop()
		submit(t, client, d.tenant, id, inbox)
		if r := receive(t, 5*time.Second, "the answer", answer); r.Sequence != 7 {
			t.Fatalf("the answer is %+v", r)
		}
		r := receive(t, time.Second, "the request", seen)
		if r.Tenant != d.tenant || r.Verb != protocol.VerbCreate || r.Sandbox != "s-"+id || r.ID != id ||
			r.Attempt != 1 || string(r.Payload) != "payload of "+id {
			t.Fatalf("the delivered request is %+v", r)
		}
		awaitEmptyQueue(t, d)
	})
}

// waiting returns how many requests are in the queue.
func waiting(t testing.TB, nc *nats.Conn) uint64 {
	t.Helper()
	js, err := natsjs.New(nc)
	must(t, err)
	stream, err := js.Stream(t.Context(), protocol.StreamRequests)
	must(t, err)
	return stream.CachedInfo().State.Msgs
}

func awaitEmptyQueue(t testing.TB, d *deployment) {
	t.Helper()
	nc := d.raw(t) // connect outside the condition: on a busy machine, connecting alone may take 5 s
	eventually.Holds(t, 5*time.Second, "the queue is empty", func() bool { return waiting(t, nc) == 0 })
}

func TestAnUndecidedRequestIsDeliveredAgain(t *testing.T) {
	conformAlone(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		attempts := make(chan int, 10)
		background(t, func(ctx context.Context) error {
			return c.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
				attempts <- r.Attempt
				if r.Attempt < 3 {
					return errors.New("not now")
				}
				return nil
			})
		})
		submit(t, c, d.tenant, "again", "")
		for want := 1; want <= 3; want++ {
			if got := receive(t, 5*time.Second, "the next attempt", attempts); got != want {
				t.Fatalf("the delivery says attempt %d, want %d", got, want)
			}
		}
		awaitEmptyQueue(t, d)
	})
}

func TestADeadCoordinatorsRequestGoesToAnother(t *testing.T) {
	conformAlone(t, func(t *testing.T, d *deployment) {
		dying, next := d.opened(t), d.opened(t)
		taken := make(chan *jetstream.Delivery, 1)
		release := make(chan struct{})
		defer close(release)
		background(t, func(ctx context.Context) error {
			err := dying.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
				taken <- r
				<-release
				return errors.New("dead")
			})
			if ctx.Err() == nil {
				return err
			}
			return nil
		})
		submit(t, next, d.tenant, "orphan", "")
		receive(t, 5*time.Second, "the first delivery", taken)
		dying.Close() // from now on this coordinator acknowledges no request
		died := time.Now()
		again := make(chan *jetstream.Delivery, 1)
		background(t, func(ctx context.Context) error {
			return next.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
				again <- r
				return nil
			})
		})
		// The second delivery is due after four seconds; the machine may delay it. The server's own default is 30 s.
		r := receive(t, 4*time.Second+10*time.Second, "the second delivery", again)
		t.Logf("delivered again after %s, attempt %d", time.Since(died), r.Attempt)
		if r.ID != "orphan" || r.Attempt != 2 {
			t.Fatalf("the second delivery is %+v, want attempt 2 of orphan", r)
		}
		awaitEmptyQueue(t, d)
	})
}

// The server may report which requests are acknowledged before it has processed the last acknowledgement.
func TestARequestIsRemovedAfterALateAcknowledgement(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, nc := d.opened(t), d.raw(t)
	submit(t, c, d.tenant, "late", "")
	js, err := natsjs.New(nc)
	must(t, err)
	consumer, err := js.CreateConsumer(t.Context(), protocol.StreamRequests, natsjs.ConsumerConfig{
		Durable: "coordinators", AckPolicy: natsjs.AckExplicitPolicy, AckWait: time.Minute, MemoryStorage: true,
	})
	must(t, err)
	m, err := consumer.Next()
	must(t, err)
	asked, err := nc.SubscribeSync("$JS.API.CONSUMER.INFO." + protocol.StreamRequests + ".coordinators")
	must(t, err)
	must(t, nc.Flush())
	var settled atomic.Int64
	settled.Store(1)
	background(t, func(ctx context.Context) error { c.TrimRequests(ctx, &settled); return nil })
	_, err = asked.NextMsg(5 * time.Second)
	must(t, err)
	_, err = consumer.Info(t.Context()) // answers come in order: the server has reported that no request is acknowledged
	must(t, err)
	must(t, m.Ack())
	awaitEmptyQueue(t, d)
}

// A request that waits long does not mean that its coordinator is dead. Each request is handled once, however long it
// waits.
func TestRequestsThatWaitLongerThanTheAckWaitAreHandledOnce(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	const requests, each = 600, 10 * time.Millisecond // 6 s of work
	for i := range requests {
		submit(t, c, d.tenant, fmt.Sprint("r", i), "")
	}
	var handled [requests]atomic.Int64
	var all atomic.Int64
	turn := time.NewTicker(each) // a request is handled when its turn comes
	defer turn.Stop()
	for range 2 { // two coordinators share the requests
		background(t, func(ctx context.Context) error {
			return d.opened(t).ConsumeRequests(ctx, func(ctx context.Context, r *jetstream.Delivery) error {
				select {
				case <-turn.C:
				case <-ctx.Done():
					return ctx.Err()
				}
				var n int
				if _, err := fmt.Sscanf(r.ID, "r%d", &n); err != nil {
					return err
				}
				handled[n].Add(1)
				all.Add(1)
				return nil
			})
		})
	}
	eventually.Holds(t, 60*time.Second, "all requests are handled", func() bool { return all.Load() >= requests })
	awaitEmptyQueue(t, d)
	for i := range handled {
		if n := handled[i].Load(); n != 1 {
			t.Errorf("request %d was handled %d times, want once", i, n)
		}
	}
	if n := all.Load(); n != requests {
		t.Errorf("%d requests were handled %d times in total", requests, n)
	}
}

// If the server dropped a repeated request, no coordinator would answer it.
func TestARequestPublishedTwiceIsDeliveredTwiceAndAnsweredTwice(t *testing.T) {
	conformAlone(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		background(t, func(ctx context.Context) error {
			return c.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
				c.Answer(r, &protocol.Reply{Version: 1, Sequence: 7})
				return nil
			})
		})
		answers, err := c.Answers()
		must(t, err)
		defer answers.Close()
		// Two concurrent callers on one client, with the same id.
		var waiting []<-chan *protocol.Reply
		for range 2 {
			inbox, answer, stop := answers.Expect("twice")
			defer stop()
			submit(t, c, d.tenant, "twice", inbox)
			waiting = append(waiting, answer)
		}
		for _, answer := range waiting {
			receive(t, 5*time.Second, "the answer to each caller", answer)
		}
		awaitEmptyQueue(t, d)
	})
}

func TestAFullQueueRefusesUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{Requests: 3})
	c := d.opened(t)
	for i := range 3 {
		submit(t, c, d.tenant, fmt.Sprintf("r%d", i), "")
	}
	over := func() error {
		return c.Submit(t.Context(), d.tenant, protocol.VerbCreate, "s", "over", "", nil)
	}
	wantError(t, over(), protocol.ResourceExhausted, protocol.ReasonQueueFull)
	background(t, func(ctx context.Context) error {
		return c.ConsumeRequests(ctx, func(context.Context, *jetstream.Delivery) error { return nil })
	})
	eventually.Holds(t, 5*time.Second, "the queue has room", func() bool { return over() == nil })
}

func TestARequestThatIsTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	for _, size := range []int{protocol.MaxSpecBytes + 65<<10, 2 << 20} {
		err := c.Submit(t.Context(), d.tenant, protocol.VerbCreate, "s", fmt.Sprint(size), "", make([]byte, size))
		wantError(t, err, protocol.InvalidArgument, protocol.ReasonTooLarge)
	}
}

// A client must not make a coordinator publish to a subject that is reserved for coordinators.
func TestAnAnswerGoesToInboxesOnly(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, nc := d.opened(t), d.raw(t)
	all, err := nc.SubscribeSync(">")
	must(t, err)
	must(t, nc.Flush())
	background(t, func(ctx context.Context) error {
		return c.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
			c.Answer(r, &protocol.Reply{Version: 1, Sequence: 4242})
			return nil
		})
	})
	bad := []string{
		"",
		"_INBOX",
		"_INBOXx.a",
		protocol.EventSubject("t", "s"),
		"$JS.API.STREAM.DELETE.X",
		"_INBOX.*",
		"_INBOX.>",
		"_INBOX.a b",
	}
	for i, inbox := range bad {
		submit(t, c, d.tenant, fmt.Sprintf("bad%d", i), inbox)
	}
	awaitEmptyQueue(t, d)
	submit(t, c, d.tenant, "good", "_INBOX.good")
	for {
		m, err := all.NextMsg(5 * time.Second)
		must(t, err)
		reply := &protocol.Reply{}
		if protocol.Decode(m.Data, reply) == nil && reply.Sequence == 4242 {
			if m.Subject != "_INBOX.good" {
				t.Fatalf("an answer went to %q", m.Subject)
			}
			return
		}
	}
}

func TestADeadLetterIsStoredWithItsReason(t *testing.T) {
	conformAlone(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		r := &jetstream.Delivery{
			Tenant:      d.tenant,
			Verb:        protocol.VerbExec,
			Sandbox:     "s1",
			ID:          "r1",
			ContentType: protocol.ContentJSON,
			Payload:     []byte("{}"),
		}
		for range 3 { // several coordinators, or one coordinator after a crash, may store the same request
			must(t, c.StoreDeadLetter(t.Context(), r, protocol.Errorf(protocol.Internal, "", "two\r\nlines")))
		}
		js, err := natsjs.New(d.raw(t))
		must(t, err)
		stream, err := js.Stream(t.Context(), protocol.StreamDead)
		must(t, err)
		var m *natsjs.RawStreamMsg
		eventually.Holds(t, 5*time.Second, "the dead letter is stored", func() bool {
			m, err = stream.GetLastMsgForSubject(t.Context(), protocol.DeadSubject(d.tenant, protocol.VerbExec, "s1"))
			return err == nil
		})
		same(t, "the headers of the dead letter", nats.Header{
			protocol.HeaderContentType: m.Header[protocol.HeaderContentType],
			protocol.HeaderRequest:     m.Header[protocol.HeaderRequest],
			protocol.HeaderReason:      m.Header[protocol.HeaderReason],
		}, nats.Header{
			protocol.HeaderContentType: {protocol.ContentJSON},
			protocol.HeaderRequest:     {"r1"},
			protocol.HeaderReason:      {"internal: two  lines"},
		})
		if string(m.Data) != "{}" {
			t.Fatalf("the dead letter contains %q, want the request's payload", m.Data)
		}
		info, err := stream.Info(
			t.Context(),
			natsjs.WithSubjectFilter(protocol.DeadSubject(d.tenant, protocol.VerbExec, "s1")),
		)
		must(t, err)
		if n := info.State.Subjects[protocol.DeadSubject(d.tenant, protocol.VerbExec, "s1")]; n != 1 {
			t.Fatalf("the dead letter is stored %d times, want once", n)
		}
	})
}
