package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// The load that measureNeighbour creates in another sandbox than the measured one.
const (
	loudExecs   = 16
	loudCommand = "yes 0123456789012345678901234567890123456789012345678901234567890123456789"
)

// measureNeighbour measures execs in one sandbox while execs in another sandbox print as fast as they can. The other
// sandbox is limited to one core.
func measureNeighbour(ctx context.Context, b *bench) (err error) {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	quiet, err := d.client.Create(ctx, spec())
	if err != nil {
		return err
	}
	boxes := []*sdk.Sandbox{quiet}
	defer func() { err = errors.Join(err, deleteAll(ctx, boxes)) }()
	oneCore := spec()
	oneCore.CPU = 1
	loud, err := d.client.Create(ctx, oneCore)
	if err != nil {
		return err
	}
	boxes = append(boxes, loud)
	samples := func(within time.Duration) (all []float64, err error) {
		for end := time.Now().Add(within); time.Now().Before(end) && err == nil; {
			var took float64
			took, err = timed(func() error { return execTrue(ctx, quiet) })
			all = append(all, took)
		}
		return all, err
	}
	window := time.Duration(b.pick(15, 6)) * time.Second
	alone, err := samples(window / 3)
	if err != nil {
		return err
	}
	for range loudExecs {
		x, err := loud.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "exec " + loudCommand}})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, x.Cancel(ctx)) }()
	}
	m := &measurement{Name: "exec of true next to 16 that print", Unit: unitMilliseconds}
	if m.Ours, err = samples(window); err != nil {
		return err
	}
	slices.Sort(alone)
	m.Target = target{ofP50, 2 * alone[len(alone)/2]}
	b.add(&measurement{Name: "exec of true, before they print", Unit: unitMilliseconds, Ours: alone})
	b.add(m)
	return nil
}
