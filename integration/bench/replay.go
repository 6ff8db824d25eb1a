package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/sdk"
)

// measureReplay measures how fast a long history is read and decoded.
func measureReplay(ctx context.Context, b *bench) (err error) {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	s, err := d.client.Create(ctx, spec())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, deleteAll(ctx, []*sdk.Sandbox{s})) }()
	execs := b.pick(5000, 2000)
	if err := execMany(ctx, s, execs); err != nil {
		return err
	}
	m := &measurement{Name: fmt.Sprintf("replay of the events of %d execs", execs), Unit: "1/s", More: true}
	for range b.pick(15, 5) {
		rate, err := replayRate(ctx, d.client, s.ID(), execs)
		if err != nil {
			return err
		}
		m.Ours = append(m.Ours, rate)
	}
	b.add(m)
	return nil
}

func execMany(ctx context.Context, s *sdk.Sandbox, n int) error {
	var left atomic.Int64
	left.Store(int64(n))
	group, ctx := errgroup.WithContext(ctx)
	for range 64 {
		group.Go(func() error {
			for left.Add(-1) >= 0 {
				if err := execTrue(ctx, s); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// replayRate reads a whole history and checks that no event is missing.
func replayRate(ctx context.Context, client *sdk.Client, sandbox string, execs int) (float64, error) {
	start := time.Now()
	var last uint64
	for e, err := range client.Sandbox(sandbox).Events(ctx) {
		if err != nil {
			return 0, err
		}
		if last++; e.Sequence != last {
			return 0, fmt.Errorf("received event %d instead of %d", e.Sequence, last)
		}
	}
	if last < 2*uint64(execs) {
		return 0, fmt.Errorf("received %d events of %d execs", last, execs)
	}
	return float64(last) / time.Since(start).Seconds(), nil
}
