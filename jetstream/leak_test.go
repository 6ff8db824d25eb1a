package jetstream_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// This test does not run in parallel: goroutines and descriptors of other tests would look like leaks.
func TestNoGoroutineRunsAndNoDescriptorIsOpenAfterClose(t *testing.T) {
	before, closed := goleak.IgnoreCurrent(), eventually.ClosesDescriptors(t, cluster.dir)
	t.Run("use", func(t *testing.T) {
		ctx := context.Background()
		c := startServer(t, jetstream.Assets{}).opened(t)
		readySandbox(t, c, "t1", "s1")
		background(t, func(ctx context.Context) error { return c.FollowEvents(ctx, 0, func(*protocol.Batch) {}, nil) })
		background(t, func(ctx context.Context) error {
			return c.ConsumeRequests(ctx, func(context.Context, *jetstream.Delivery) error { return nil })
		})
		listenForWork(t, c, "w1")
		background(t, func(ctx context.Context) error { return c.ServeReads(ctx, "1.2.3", nil, nil) })
		l, err := c.AcquireHost(ctx, "h1", holder("w1"), 0)
		must(t, err)
		renewed(t, l)
		_, err = c.Live("*", "*", func(*protocol.Batch) {})
		must(t, err)
		_, err = c.Answers()
		must(t, err)
		must(t, publishChunks(t, c, "t1", "s1", "x1", 10, 3))
		_, err = c.ReadOutput(ctx, outputOf("t1", "s1", "x1"), 0, func(jetstream.Chunk) error { return nil })
		must(t, err)
	})
	goleak.VerifyNone(t, before)
	closed()
}

// An append that waits for the server may last for half a minute; it must not outlive its connection.
func TestNoAppendContinuesAfterClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("use", func(t *testing.T) {
		d := startServer(t, jetstream.Assets{})
		c := d.opened(t)
		j := c.Journal(jetstream.JournalConfig{Tenant: "t1", Sandbox: "s1", Writer: "w1"})
		d.servers[0].Stop()
		ended, cancel := context.WithCancel(t.Context())
		cancel() // Do returns, and the append continues
		_, err := j.Do(ended, func(*protocol.State, time.Time) ([]protocol.Event, error) { return nil, nil })
		wantError(t, err, protocol.Cancelled, "")
	})
	goleak.VerifyNone(t, before)
}
