package embedded_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

// This test does not run in parallel: goroutines and descriptors of other tests would look like leaks.
func TestNoGoroutineRunsAndNoDescriptorIsOpenAfterStop(t *testing.T) {
	before, closed := goleak.IgnoreCurrent(), eventually.ClosesDescriptors(t)
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
	closed()
}
