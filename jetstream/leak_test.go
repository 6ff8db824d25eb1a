package jetstream_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// openDescriptors returns the files and sockets that this process has open. It leaves out the files of the cluster that
// all tests share.
func openDescriptors(t testing.TB) map[string]bool {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	must(t, err)
	open := map[string]bool{}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || cluster.dir != "" && strings.HasPrefix(target, cluster.dir) {
			continue // the descriptor was closed in the meantime, or refers to a file of the cluster
		}
		open[target] = true
	}
	return open
}

// closesDescriptors checks that all descriptors that were not open before are closed.
func closesDescriptors(t testing.TB, before map[string]bool) {
	t.Helper()
	var left []string
	defer func() {
		if t.Failed() {
			t.Logf("descriptors that are still open: %q", left)
		}
	}()
	eventually.Holds(t, 10*time.Second, "all descriptors of the test are closed", func() bool {
		left = nil
		for target := range openDescriptors(t) {
			if !before[target] {
				left = append(left, target)
			}
		}
		return len(left) == 0
	})
}

// This test does not run in parallel: goroutines and descriptors of other tests would look like leaks.
func TestNoGoroutineRunsAndNoDescriptorIsOpenAfterClose(t *testing.T) {
	before, open := goleak.IgnoreCurrent(), openDescriptors(t)
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
		_, err = c.ReadOutput(ctx, "t1", "s1", "x1", 0, func(jetstream.Chunk) error { return nil })
		must(t, err)
	})
	goleak.VerifyNone(t, before)
	closesDescriptors(t, open)
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
