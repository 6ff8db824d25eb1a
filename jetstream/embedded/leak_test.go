package embedded_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

// openDescriptors returns the files and sockets that this process has open.
func openDescriptors(t *testing.T) map[string]bool {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]bool{}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil { // otherwise it was closed in the meantime
			open[target] = true
		}
	}
	return open
}

// This test does not run in parallel: goroutines and descriptors of other tests would look like leaks.
func TestNoGoroutineRunsAndNoDescriptorIsOpenAfterStop(t *testing.T) {
	before, open := goleak.IgnoreCurrent(), openDescriptors(t)
	k, err := embedded.Keep(embedded.Config{Dir: t.TempDir()}, embedded.DefaultBallast, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		k.Watch(ctx, func(string) {})
	}()
	if err := k.Restart(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	<-watched
	k.Stop()
	goleak.VerifyNone(t, before)
	var left []string
	defer func() {
		if t.Failed() {
			t.Logf("descriptors that are still open: %q", left)
		}
	}()
	eventually.Holds(t, 10*time.Second, "all descriptors of the test are closed", func() bool {
		left = nil
		for target := range openDescriptors(t) {
			if !open[target] {
				left = append(left, target)
			}
		}
		return len(left) == 0
	})
}
