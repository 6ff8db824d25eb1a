package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/integration/seed"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// pastOfGoals is the number of past execs that the goals apply to.
const pastOfGoals = 100000

// measureAge measures how three costs grow with the number of past execs of a sandbox: running an exec, reading one
// exec, and restarting the worker.
func measureAge(ctx context.Context, b *bench) (err error) {
	r := b.role // without credentials, because no role has the right to write past execs
	// A short interval: the measurement begins when a snapshot contains the past execs. In production a snapshot
	// contains past execs some time after their end.
	r.Dir, r.Snapshot = path.Join(b.dir, "age"), time.Second
	d, err := deploy(ctx, r, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.end()) }()
	boxes, err := d.sandboxes(ctx, 2, spec())
	if err != nil {
		return err
	}
	fresh, old := boxes[0], boxes[1]
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: d.role.URL, Name: "bench-past"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Open(ctx); err != nil {
		return err
	}
	alone, err := b.restartToExec(ctx, d, old, 0)
	if err != nil {
		return err
	}
	there := 0
	for _, n := range b.past {
		if err := age(ctx, conn, old, there, n); err != nil {
			return err
		}
		there = n
		if err := errors.Join(b.agedExecs(ctx, fresh, old, n), b.agedReads(ctx, old, n)); err != nil {
			return err
		}
		with, err := b.restartToExec(ctx, d, old, n)
		if err != nil {
			return err
		}
		b.add(&measurement{Name: "  the worker's memory then, above that with none", Unit: unitMemory,
			Ours: []float64{with - alone}, Target: target{ofWorst, 20}.at(n, pastOfGoals)})
	}
	return nil
}

// age adds past execs to a sandbox until it has n past execs, and returns when a snapshot contains all of them. The
// parameter there is the number of past execs that the sandbox already has.
func age(ctx context.Context, conn *jetstream.Conn, s *sdk.Sandbox, there, n int) error {
	if err := seed.Execs(ctx, conn, protocol.DefaultTenant, s.ID(),
		seed.Past{N: n - there, First: there, PerMessage: 8}); err != nil {
		return err
	}
	if err := execTrue(ctx, s); err != nil { // when this exec ends, the worker has read the whole history
		return err
	}
	for {
		stored, err := conn.Snapshot(ctx, protocol.DefaultTenant, s.ID())
		if err == nil && stored.State != nil && stored.State.Sandbox.TotalExecs > n {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("no snapshot contains the %d past execs: %w", n, errors.Join(ctx.Err(), err))
		}
	}
}

// agedExecs measures execs in the sandboxes fresh and old, in turn.
func (b *bench) agedExecs(ctx context.Context, fresh, old *sdk.Sandbox, n int) error {
	m := &measurement{Name: fmt.Sprintf("exec p50 with %d past execs, relative to a fresh sandbox", n), Unit: "x",
		Target: target{ofP50, 1.05}.at(n, pastOfGoals)}
	for range b.pick(10, 3) {
		var p50 [2]float64
		for i, s := range []*sdk.Sandbox{old, fresh} {
			var samples measurement
			for range b.pick(40, 20) {
				took, err := timed(func() error { return execTrue(ctx, s) })
				if err != nil {
					return err
				}
				samples.Ours = append(samples.Ours, took)
			}
			p50[i], _ = samples.figures(samples.Ours)
		}
		m.Ours = append(m.Ours, p50[0]/p50[1])
	}
	b.add(m)
	return nil
}

// agedReads measures reads of one past exec: first one after another, then 200 at once.
func (b *bench) agedReads(ctx context.Context, s *sdk.Sandbox, n int) error {
	const atOnce = 200
	read := func(ctx context.Context) (float64, error) {
		id := seed.ID(rand.IntN(n))
		return timed(func() error {
			x, err := s.GetExec(ctx, id)
			if err == nil && x.ID() != id {
				err = fmt.Errorf("requested exec %s, got %s", id, x.ID())
			}
			return err
		})
	}
	alone := &measurement{Name: fmt.Sprintf("get of one of %d past execs", n), Unit: unitMilliseconds,
		Target: target{ofP99, 5}.at(n, pastOfGoals)}
	for range b.pick(300, 100) {
		took, err := read(ctx)
		if err != nil {
			return err
		}
		alone.Ours = append(alone.Ours, took)
	}
	b.add(alone)
	together := &measurement{Name: fmt.Sprintf("  with %d at once", atOnce), Unit: unitMilliseconds,
		Target: target{ofP99, 50}.at(n, pastOfGoals)}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for range atOnce {
		group.Go(func() error {
			for range b.pick(5, 1) {
				took, err := read(ctx)
				if err != nil {
					return err
				}
				mu.Lock()
				together.Ours = append(together.Ours, took)
				mu.Unlock()
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	b.add(together)
	return nil
}

// restartToExec kills and restarts the worker, and measures the time from the start of the worker to the end of the
// first exec in a sandbox. It also returns the lowest memory of the worker over all restarts. Higher values depend on
// when the garbage collector ran.
func (b *bench) restartToExec(ctx context.Context, d *deployment, s *sdk.Sandbox, n int) (memory float64, err error) {
	m := &measurement{Name: fmt.Sprintf("worker restart with %d past execs to the first exec", n),
		Unit:   unitMilliseconds,
		Target: target{ofP50, 500}.at(n, pastOfGoals)}
	for i := range b.pick(5, 2) {
		took, err := d.restartWorker(ctx, s)
		if err != nil {
			return 0, err
		}
		m.Ours = append(m.Ours, took)
		rss, _, err := part.Resident(d.worker.Pid())
		if err != nil {
			return 0, err
		}
		if i == 0 || rss < memory {
			memory = rss
		}
	}
	b.add(m)
	return memory, nil
}
