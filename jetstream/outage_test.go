package jetstream_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// able waits until NATS makes a consumer of the queue, answers for the queue's own consumer, and stores a request. In
// a cluster the servers elect a leader for each of the three, and the queue's consumer may get its leader last. able
// tries each ten times a second, and returns the time at which all had succeeded.
func (d *deployment) able(t *testing.T, id string) time.Time {
	t.Helper()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	try := func(what string, f func(ctx context.Context) error) {
		eventually.Holds(t, 60*time.Second, what, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			return f(ctx) == nil
		})
	}
	try("a consumer is made", func(ctx context.Context) error {
		_, err := js.CreateConsumer(
			ctx,
			protocol.StreamRequests,
			natsjs.ConsumerConfig{
				Name:              id,
				AckPolicy:         natsjs.AckNonePolicy,
				MemoryStorage:     true,
				InactiveThreshold: time.Minute,
			},
		)
		return err
	})
	try("the leader of the queue's consumer answers", func(ctx context.Context) error {
		_, err := js.Consumer(ctx, protocol.StreamRequests, "coordinators")
		if errors.Is(err, natsjs.ErrConsumerNotFound) { // a single server has lost it, and no election holds up a new one
			return nil
		}
		return err
	})
	try("a request is stored", func(ctx context.Context) error {
		_, err := js.Publish(
			ctx,
			protocol.RequestSubject(d.tenant, protocol.VerbStop, id),
			nil,
			natsjs.WithRetryAttempts(0),
		)
		return err
	})
	return time.Now()
}

// restartAll stops every server at once and starts all of them again.
func (d *deployment) restartAll(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	for _, s := range d.servers {
		wg.Go(s.Stop)
	}
	wg.Wait()
	errs := make(chan error, len(d.servers))
	for i := range d.servers {
		go func() {
			s, err := d.servers[i].Restart()
			if err == nil {
				d.servers[i] = s
			}
			errs <- err
		}()
	}
	for range d.servers {
		must(t, <-errs)
	}
}

// The queue recovers together with NATS, even if a request for messages was lost during an election.
func TestTheFirstRequestAfterAnOutageIsReceivedWithinASecond(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *deployment{
		"server":  func(t testing.TB) *deployment { return startServer(t, jetstream.Assets{}) },
		"cluster": startCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t)
			k := d.opened(t)
			type heard struct {
				id string
				at time.Time
			}
			requests := make(chan heard, 1000)
			background(t, func(ctx context.Context) error {
				return k.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
					requests <- heard{r.Sandbox, time.Now()}
					return nil
				})
			})
			for _, id := range []string{"before", "after"} {
				if id != "before" {
					d.restartAll(t)
				}
				began := time.Now()
				able := d.able(t, id)
				var h heard
				for h.id != id {
					h = receive(t, 30*time.Second, "request "+id, requests)
				}
				t.Logf("%s: NATS had recovered after %s, and the request was received %s later",
					id, able.Sub(began), h.at.Sub(able))
				if late := h.at.Sub(able); id != "before" && late > 1500*time.Millisecond {
					t.Errorf("%s: the request was received %s after NATS had recovered, want at most 1.5 s", id, late)
				}
			}
		})
	}
}
