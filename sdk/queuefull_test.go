package sdk_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// Instead of a coordinator, the test answers the requests.
func TestARequestIsSentAgainWhileTheQueueIsFull(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	f.Processes("coordinator")[0].Stop()
	client, err := sdk.Connect(ctx, f.Options(sdk.Options{RequestTimeout: 500 * time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	create := func(ctx context.Context) error {
		_, err := client.Create(ctx, f.Spec(), sdk.WithWait(false))
		return err
	}
	var refusals atomic.Int64 // how many further copies are refused
	conn := f.AsCoordinator("c")
	consume, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- conn.ConsumeRequests(consume, func(_ context.Context, d *jetstream.Delivery) error {
			reply := &protocol.Reply{Version: protocol.Version, Sandbox: &protocol.Sandbox{ID: d.Sandbox}}
			if refusals.Add(-1) >= 0 {
				reply.Sandbox, reply.Error = nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonQueueFull, "full")
			}
			conn.Answer(d, reply)
			return nil
		})
	}()
	defer func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()

	refusals.Store(2)
	if err := create(ctx); err != nil || refusals.Load() != -1 {
		t.Errorf("after two refusals: %v, %d refusals are left", err, refusals.Load())
	}
	refusals.Store(1000)
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	wantError(t, create(short), protocol.DeadlineExceeded, protocol.ReasonQueueFull)
	wantError(t, create(context.Background()), protocol.ResourceExhausted, protocol.ReasonQueueFull)
	refusals.Store(0)

	js := sdk.PlainClient(t, f.URL(), f.Unlimited("test").Creds)
	stream, err := js.Stream(ctx, protocol.StreamRequests)
	if err != nil {
		t.Fatal(err)
	}
	limit := func(bytes int64) {
		cfg := stream.CachedInfo().Config
		cfg.MaxBytes, cfg.Discard = bytes, natsjs.DiscardNew
		if _, err := js.UpdateStream(ctx, cfg); err != nil {
			t.Error(err)
		}
	}
	limit(1)
	wantError(t, create(context.Background()), protocol.ResourceExhausted, protocol.ReasonQueueFull)
	room := time.AfterFunc(300*time.Millisecond, func() { limit(-1) })
	defer room.Stop()
	if err := create(ctx); err != nil {
		t.Errorf("once the queue has room: %v", err)
	}
}
