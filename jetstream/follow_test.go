package jetstream_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// In a cluster the first request for messages of a new consumer is lost now and then; it is made again
// long before the client would do that by itself, after ten seconds.
func TestWhoBeginsToFollowInAClusterHasWhatThereIsSoon(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	readySandbox(t, d.opened(t), d.tenant, "s1")
	const clients, each = 12, 40
	var mu sync.Mutex
	var worst time.Duration
	var following sync.WaitGroup
	for range clients {
		c := d.opened(t)
		following.Go(func() {
			for range each {
				ctx, enough := context.WithTimeout(t.Context(), time.Minute)
				began, heard := time.Now(), 0
				_ = c.FollowEvents(ctx, 1, func(*protocol.Batch) { heard++ }, enough) // ends with its context
				enough()
				mu.Lock()
				worst = max(worst, time.Since(began))
				mu.Unlock()
				if heard == 0 {
					t.Error("nothing was heard of")
				}
			}
		})
	}
	following.Wait()
	t.Logf("of %d the slowest needed %s", clients*each, worst.Round(time.Millisecond))
	if worst > 7*time.Second {
		t.Errorf("one needed %s", worst)
	}
}

// Where heartbeats do not come, the library begins anew, with a consumer that it asks for. Who stops following
// meanwhile must not follow that one for ever.
func TestFollowingEndsThoughItIsBeginningAnew(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	p := throughProxy(t, d)
	c := d.connTo(t, p.url())
	must(t, c.Open(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const followers = 50
	begun, ended := make(chan struct{}, followers), make(chan error, followers)
	for range followers {
		go func() {
			ended <- c.FollowEvents(ctx, 0, func(*protocol.Batch) {}, func() { begun <- struct{}{} })
		}()
	}
	for range followers {
		receive(t, 5*time.Second, "the begin", begun)
	}
	p.held.Lock()
	time.Sleep(2700 * time.Millisecond) // two heartbeats are missing: they have asked for new consumers
	cancel()
	time.Sleep(100 * time.Millisecond)
	p.held.Unlock()
	for range followers {
		receive(t, 5*time.Second, "the end", ended)
	}
}
