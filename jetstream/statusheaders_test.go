package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// hostileHeaders are header blocks of messages without a payload. The NATS client takes the first four for a status of
// the server, and cannot decode the others.
var hostileHeaders = []string{
	"NATS/1.0\r\nStatus: 100\r\n\r\n",
	"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n",
	"NATS/1.0\r\nStatus: 408\r\nNats-Pending-Messages: 1000000\r\n\r\n",
	"NATS/1.0\nStatus: 503\n\n",
	"NATS/1.0\r\nno colon\r\n\r\n",
	"NATS/1.0",
}

// eachHostileHeader runs a test on a server of its own for each of the hostile headers. publish publishes the given
// number of messages with the header and without a payload.
func eachHostileHeader(t *testing.T, test func(t *testing.T, d *deployment,
	publish func(subject string, messages int))) {
	t.Helper()
	t.Parallel()
	for i, header := range hostileHeaders {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			d := startServer(t, jetstream.Assets{})
			raw := rawPublisher(t, d.url())
			test(t, d, func(subject string, messages int) {
				for range messages {
					raw(subject, header, "")
				}
			})
		})
	}
}

// A follower reads past the hostile messages, both those that are in the log when it starts and those that are appended
// later.
func TestAFollowerPassesMessagesThatLookLikeAStatus(t *testing.T) {
	eachHostileHeader(t, func(t *testing.T, d *deployment, publish func(subject string, messages int)) {
		c := d.opened(t)
		hostile := func(sandbox string) {
			publish(protocol.AppendSubject("evil", d.tenant, sandbox), 3)
			eventually.Holds(t, 5*time.Second, "the messages are stored", func() bool {
				return d.onSubject(t, d.tenant, sandbox) == 3
			})
		}
		readySandbox(t, c, d.tenant, "s1")
		hostile("evil1")
		heard, caughtUp := make(chan string, 100), make(chan struct{})
		background(t, func(ctx context.Context) error {
			return c.FollowEvents(ctx, 1, func(b *protocol.Batch) { heard <- b.Sandbox }, func() { close(caughtUp) })
		})
		receive(t, 5*time.Second, "the end of the log", caughtUp)
		hostile("evil2")
		readySandbox(t, c, d.tenant, "s2")
		for _, want := range []string{"s1", "s2"} {
			for receive(t, 5*time.Second, "a batch of "+want, heard) != want { // each has several batches
			}
		}
	})
}

// Measuring the stored output reads only headers, so that each message looks as if it had no payload.
func TestOutputThatLooksLikeAStatusIsMeasured(t *testing.T) {
	eachHostileHeader(t, func(t *testing.T, d *deployment, publish func(subject string, messages int)) {
		c := d.opened(t)
		subject := protocol.OutputSubject("w1", d.tenant, "s1", "e1")
		publish(subject, 3)
		rawPublisher(t, d.url())(subject, "NATS/1.0\r\nA: b\r\n\r\n", "")
		eventually.Holds(t, 5*time.Second, "the output is stored", func() bool {
			room, err := c.OutputRoom(t.Context())
			return err == nil && room.Last == 4
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		measured := 0
		next, err := c.OutputSizes(ctx, 1, func(jetstream.StoredOutput) { measured++ })
		must(t, err)
		if measured != 4 || next != 5 {
			t.Errorf("%d messages were measured and the next record is %d, want 4 and 5", measured, next)
		}
	})
}

// More hostile requests than coordinators may hold at once must not keep the requests after them waiting.
func TestRequestsThatLookLikeAStatusAreDelivered(t *testing.T) {
	eachHostileHeader(t, func(t *testing.T, d *deployment, publish func(subject string, messages int)) {
		c := d.opened(t)
		const hostile = 1100
		publish(protocol.RequestSubject("evil", protocol.VerbCreate, "s1"), hostile)
		nc := d.raw(t)
		eventually.Holds(t, 5*time.Second, "the hostile requests are stored", func() bool {
			return waiting(t, nc) == hostile
		})
		submit(t, c, d.tenant, "good", "")
		var foreign atomic.Int64
		good := make(chan *jetstream.Delivery, 1)
		background(t, func(ctx context.Context) error {
			return c.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
				switch {
				case r.Tenant == d.tenant:
					good <- r
				case r.Tenant != "evil" || len(r.Payload) != 0:
					return errors.New("not a published request")
				default:
					foreign.Add(1)
				}
				return nil
			})
		})
		receive(t, 5*time.Second, "the request after the hostile ones", good)
		awaitEmptyQueue(t, d)
		if n := foreign.Load(); n != hostile {
			t.Errorf("%d hostile requests were handled, want %d", n, hostile)
		}
	})
}
