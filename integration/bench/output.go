package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/sdk"
)

// measureOutput measures how fast output streams to the client, from one exec and from many at once.
func measureOutput(ctx context.Context, b *bench) (err error) {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	bare, err := b.engine.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.remove(ctx)) }()
	theirs := func(ctx context.Context, command []string) (int64, error) { return bare.exec(ctx, command...) }
	for _, l := range []struct {
		m            *measurement
		execs, mebis int
	}{
		{&measurement{Name: "output of one exec, 100 MiB"}, 1, 100},
		{&measurement{Name: "output of 20 execs at once, 10 MiB each"}, 20, 10},
	} {
		l.m.Unit, l.m.More = unitThroughput, true
		for range b.pick(7, 2) {
			rate, err := d.throughput(ctx, l.execs, l.mebis)
			if err != nil {
				return err
			}
			bareRate, err := throughput(ctx, l.execs, l.mebis, theirs)
			if err != nil {
				return fmt.Errorf("the engine: %w", err)
			}
			l.m.Ours, l.m.Bare = append(l.m.Ours, rate), append(l.m.Bare, bareRate)
		}
		b.add(l.m)
	}
	return nil
}

// throughput measures the output of a new sandbox, which still has its whole output burst.
func (d *deployment) throughput(ctx context.Context, execs, mebis int) (rate float64, err error) {
	s, err := d.client.Create(ctx, spec())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, deleteAll(ctx, []*sdk.Sandbox{s})) }()
	return throughput(ctx, execs, mebis, func(ctx context.Context, command []string) (int64, error) {
		var n counter
		err := execOK(ctx, s, command, sdk.WithStdout(&n))
		return int64(n), err
	})
}

// throughput runs execs at the same time. Each writes the given number of MiB. throughput checks that every byte
// arrives.
func throughput(
	ctx context.Context, execs, mebis int, run func(context.Context, []string) (int64, error),
) (float64, error) {
	command := []string{"dd", "if=/dev/zero", "bs=1M", "count=" + strconv.Itoa(mebis)}
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range execs {
		group.Go(func() error {
			n, err := run(ctx, command)
			if err == nil && n != int64(mebis)<<20 {
				err = fmt.Errorf("received %d of %d bytes", n, mebis<<20)
			}
			return err
		})
	}
	err := group.Wait()
	return float64(execs*mebis) / time.Since(start).Seconds(), err
}
