package main

import (
	"context"

	"github.com/boxfleet/boxfleet/sdk"
)

// measureCreate measures create to ready, and delete, each beside the Engine's own.
func measureCreate(ctx context.Context, b *bench) error {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	create := &measurement{Name: "create to ready", Unit: unitMilliseconds, Target: target{ofRatio, 1.1}}
	remove := &measurement{Name: "delete", Unit: unitMilliseconds, Target: target{ofRatio, 1.1}}
	const warmUp = 1
	for i := range b.pick(25, 4) + warmUp {
		var s *sdk.Sandbox
		created, err := timed(func() (err error) { s, err = d.client.Create(ctx, spec()); return err })
		if err != nil {
			return err
		}
		var bare *box
		bareCreated, err := timed(func() (err error) { bare, err = b.engine.create(ctx); return err })
		if err != nil {
			return err
		}
		deleted, err := timed(func() error { return s.Delete(ctx) })
		if err != nil {
			return err
		}
		bareDeleted, err := timed(func() error { return bare.remove(ctx) })
		if err != nil {
			return err
		}
		if i >= warmUp {
			create.Ours, create.Bare = append(create.Ours, created), append(create.Bare, bareCreated)
			remove.Ours, remove.Bare = append(remove.Ours, deleted), append(remove.Bare, bareDeleted)
		}
	}
	b.add(create)
	b.add(remove)
	return nil
}

// measureStop measures stop of an idle sandbox, and the resume after it.
func measureStop(ctx context.Context, b *bench) error {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	s, err := d.client.Create(ctx, spec())
	if err != nil {
		return err
	}
	stop := &measurement{Name: "stop of an idle sandbox", Unit: unitMilliseconds, Target: target{ofP50, 500}}
	resume := &measurement{Name: "resume", Unit: unitMilliseconds}
	for range b.pick(15, 4) {
		stopped, err := timed(func() error { return s.Stop(ctx) })
		if err != nil {
			return err
		}
		resumed, err := timed(func() error { return s.Resume(ctx) })
		if err != nil {
			return err
		}
		stop.Ours, resume.Ours = append(stop.Ours, stopped), append(resume.Ours, resumed)
	}
	b.add(stop)
	b.add(resume)
	return s.Delete(ctx)
}
