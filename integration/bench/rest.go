package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/sdk"
)

// restingCost measures the processor time that an idle deployment and its client use. Its samples alternate: first
// without followers, then with a follower on each sandbox.
func (b *bench) restingCost(ctx context.Context, d *deployment, boxes []*sdk.Sandbox) error {
	alone := &measurement{Name: fmt.Sprintf("CPU at rest, %d sandboxes", len(boxes)), Unit: "ms/s"}
	followed := &measurement{Name: fmt.Sprintf("CPU at rest, %d sandboxes followed", len(boxes)), Unit: "ms/s"}
	window := time.Duration(b.pick(3000, 800)) * time.Millisecond
	for range b.pick(3, 1) {
		if err := alone.rest(ctx, d, window); err != nil {
			return err
		}
		stop, err := follow(ctx, d.client, boxes)
		if err != nil {
			return err
		}
		err = followed.rest(ctx, d, window)
		stop()
		if err != nil {
			return err
		}
	}
	b.add(alone)
	b.add(followed)
	return nil
}

// rest takes one sample over a window.
func (m *measurement) rest(ctx context.Context, d *deployment, window time.Duration) error {
	before, err := part.Busy(d.server.Pid(), d.worker.Pid(), os.Getpid())
	if err != nil {
		return err
	}
	start := time.Now()
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := part.Busy(d.server.Pid(), d.worker.Pid(), os.Getpid())
	m.Ours = append(m.Ours, milliseconds(after-before)/time.Since(start).Seconds())
	return err
}

// follow follows the histories of sandboxes until stop is called. It returns once every follower has caught up.
func follow(ctx context.Context, client *sdk.Client, boxes []*sdk.Sandbox) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var followers sync.WaitGroup
	stop = func() { cancel(); followers.Wait() }
	caughtUp := make(chan error, 2*len(boxes)) // two values per follower: when it has caught up, when it ends
	for _, s := range boxes {
		if err := s.Refresh(ctx); err != nil {
			stop()
			return nil, err
		}
		end := s.Info().Sequence
		followers.Go(func() {
			for e, err := range client.Sandbox(s.ID()).Events(ctx, sdk.WithFollow(true)) {
				if err != nil || e.Sequence == end {
					caughtUp <- err
				}
			}
		})
	}
	for range boxes {
		if err := <-caughtUp; err != nil {
			stop()
			return nil, err
		}
	}
	return stop, nil
}
