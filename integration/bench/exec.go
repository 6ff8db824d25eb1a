package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// measureExec measures execs of `true`: one exec after another, then as many as possible at once.
func measureExec(ctx context.Context, b *bench) (err error) {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	boxes, err := d.sandboxes(ctx, 4, spec())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, deleteAll(ctx, boxes)) }()
	bare, err := b.engine.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.remove(ctx)) }()
	var plain *sdk.Sandbox // in a deployment without credentials
	if !b.insecure {
		r := b.role
		r.Dir = b.dir + "/plain"
		without, err := deploy(ctx, r, false)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, without.end()) }()
		if plain, err = without.client.Create(ctx, spec()); err != nil {
			return err
		}
	}
	if err := b.execRoundTrip(ctx, boxes[0], plain, bare); err != nil {
		return err
	}
	end, err := b.profile(ctx, d)
	if err != nil {
		return err
	}
	return errors.Join(b.execRates(ctx, boxes, plain, bare), end())
}

// execTrue runs `true` in a sandbox.
func execTrue(ctx context.Context, s *sdk.Sandbox) error {
	return execOK(ctx, s, []string{"true"})
}

// execOK runs a command that must exit 0.
func execOK(ctx context.Context, s *sdk.Sandbox, command []string, opts ...sdk.ExecOption) error {
	result, err := s.Exec(ctx, protocol.ExecSpec{Command: command}, opts...)
	if err == nil && (result.ExitCode == nil || *result.ExitCode != 0) {
		err = fmt.Errorf("exec of %q: %+v", command, result)
	}
	return err
}

// Boxfleet and the bare Engine take turns after several execs, not after each exec: the Engine cleans up an exec after
// it has answered, and this work would slow the other side.
const (
	runLength = 10
	runWarmUp = 2
)

func (b *bench) execRoundTrip(ctx context.Context, s, plain *sdk.Sandbox, bare *box) error {
	m := &measurement{Name: "exec of true, call to result", Unit: unitMilliseconds, Target: target{ofRatio, 0.1}}
	without := &measurement{Name: m.Name + withoutCredentials, Unit: unitMilliseconds}
	type side struct {
		samples *[]float64
		call    func() error
	}
	sides := []side{
		{&m.Ours, func() error { return execTrue(ctx, s) }},
		{&m.Bare, func() error { _, err := bare.exec(ctx, "true"); return err }},
	}
	if plain != nil {
		sides = append(sides, side{&without.Ours, func() error { return execTrue(ctx, plain) }})
	}
	for range b.pick(20, 4) {
		for _, side := range sides {
			for i := range runWarmUp + runLength {
				took, err := timed(side.call)
				if err != nil {
					return err
				}
				if i >= runWarmUp {
					*side.samples = append(*side.samples, took)
				}
			}
		}
	}
	b.add(m)
	if plain != nil {
		b.add(without)
	}
	return nil
}

// withoutCredentials is the suffix of the name of a measurement without credentials. The samples of both measurements,
// with and without credentials, alternate.
const withoutCredentials = ", without credentials"

// execLoad is one pattern of concurrent execs.
type execLoad struct {
	measurement
	parallel, over int         // how many execs run at once, and in how many sandboxes
	without        measurement // the same in a deployment without credentials
}

// execRates counts the execs per second in several rounds. In each round it measures Boxfleet and then the bare Engine.
// If plain is not nil, it also measures the sandbox plain, which is in a deployment without credentials.
func (b *bench) execRates(ctx context.Context, boxes []*sdk.Sandbox, plain *sdk.Sandbox, bare *box) error {
	loads := []*execLoad{
		{measurement: measurement{Name: "execs, 8 at once in one sandbox", Target: target{ofP50, 600}}, parallel: 8, over: 1},
		{measurement: measurement{Name: "execs, 64 at once in one sandbox", Target: target{ofP50, 1000}}, parallel: 64,
			over: 1},
		{measurement: measurement{Name: "execs, 8 at once over four sandboxes"}, parallel: 8, over: 4},
		{measurement: measurement{Name: "execs, 64 at once over four sandboxes"}, parallel: 64, over: 4},
	}
	window := time.Duration(b.pick(2000, 600)) * time.Millisecond
	for range b.pick(5, 2) {
		for _, l := range loads {
			rate, err := ratePerSecond(ctx, l.parallel, window, func(ctx context.Context, i int) error {
				return execTrue(ctx, boxes[i%l.over])
			})
			if err != nil {
				return err
			}
			l.Ours = append(l.Ours, rate)
			if plain == nil || l.over > 1 {
				continue
			}
			rate, err = ratePerSecond(ctx, l.parallel, window, func(ctx context.Context, _ int) error {
				return execTrue(ctx, plain)
			})
			if err != nil {
				return err
			}
			l.without.Ours = append(l.without.Ours, rate)
		}
		rate, err := ratePerSecond(ctx, 8, window, func(ctx context.Context, _ int) error {
			_, err := bare.exec(ctx, "true")
			return err
		})
		if err != nil {
			return err
		}
		loads[0].Bare = append(loads[0].Bare, rate)
	}
	for _, l := range loads {
		l.Unit, l.More = "1/s", true
		b.add(&l.measurement)
		if len(l.without.Ours) > 0 {
			l.without.Name, l.without.Unit, l.without.More = l.Name+withoutCredentials, l.Unit, true
			b.add(&l.without)
		}
	}
	return nil
}

// ratePerSecond makes calls from the given number of goroutines at once. After a warm-up of a quarter of the window, it
// counts the calls that end within the window.
func ratePerSecond(
	ctx context.Context, parallel int, window time.Duration, call func(ctx context.Context, i int) error,
) (float64, error) {
	begin := time.Now().Add(window / 4)
	end := begin.Add(window)
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for i := range parallel {
		group.Go(func() error {
			for time.Now().Before(end) {
				if err := call(ctx, i); err != nil {
					return err
				}
				if now := time.Now(); !now.Before(begin) && now.Before(end) {
					done.Add(1)
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return float64(done.Load()) / window.Seconds(), err
}

// profile starts CPU profiles of the deployment and of the client if the options ask for profiles. end writes both
// profiles.
func (b *bench) profile(ctx context.Context, d *deployment) (end func() error, err error) {
	if b.cpuProfile == "" {
		return func() error { return nil }, nil
	}
	client, err := os.Create(b.cpuProfile + ".client")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(client); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	if err := d.server.Ask(ctx, part.CommandProfile+" "+b.cpuProfile, nil); err != nil {
		pprof.StopCPUProfile()
		return nil, errors.Join(err, client.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return errors.Join(d.server.Ask(ctx, part.CommandEndProfile, nil), client.Close())
	}, nil
}

// deleteAll deletes sandboxes even if the phase has timed out.
func deleteAll(ctx context.Context, boxes []*sdk.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(4)
	for _, s := range boxes {
		group.Go(func() error { return s.Delete(ctx) })
	}
	return group.Wait()
}

// counter counts the bytes written to it.
type counter int64

func (c *counter) Write(data []byte) (int, error) {
	*c += counter(len(data))
	return len(data), nil
}

var _ io.Writer = (*counter)(nil)
