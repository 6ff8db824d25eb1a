package main

import (
	"context"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// measureCreate measures how long a sandbox takes until it is ready, and how long its delete takes. The bare Engine
// does the same for comparison.
func measureCreate(ctx context.Context, b *bench) error {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	create := &measurement{Name: "create to ready", Unit: unitMilliseconds, Target: target{ofRatio, 1.1}}
	remove := &measurement{Name: "delete", Unit: unitMilliseconds, Target: target{ofRatio, 1.1}}
	steps := map[string]*measurement{}
	for _, name := range createSteps {
		steps[name] = &measurement{Name: "  of it " + name, Unit: unitMilliseconds}
	}
	const warmUp = 1
	for i := range b.pick(25, 4) + warmUp {
		var s *sdk.Sandbox
		begin := time.Now()
		created, err := timed(func() (err error) { s, err = d.client.Create(ctx, spec()); return err })
		if err != nil {
			return err
		}
		var bare *box
		bareCreated, err := timed(func() (err error) { bare, err = b.engine.create(ctx); return err })
		if err != nil {
			return err
		}
		took, err := stepsOfCreate(ctx, d.client, s.ID(), begin)
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
		if i < warmUp {
			continue
		}
		create.Ours, create.Bare = append(create.Ours, created), append(create.Bare, bareCreated)
		remove.Ours, remove.Bare = append(remove.Ours, deleted), append(remove.Bare, bareDeleted)
		for name, m := range steps {
			m.Ours = append(m.Ours, took[name])
			if t, ok := bare.took[name]; ok {
				m.Bare = append(m.Bare, t)
			}
		}
	}
	b.add(create)
	for _, name := range createSteps {
		b.add(steps[name])
	}
	b.add(remove)
	return nil
}

// createSteps are the steps of a create, in order.
var createSteps = []string{"accept", "place", "tell", "image", "network", "container", "start"}

// stepsOfCreate reads from a history how long each step of a create took, in milliseconds. Each step lasts from one
// event to the next event.
func stepsOfCreate(
	ctx context.Context, client *sdk.Client, sandbox string, begin time.Time,
) (map[string]float64, error) {
	took := map[string]float64{}
	step := "accept"
	for e, err := range client.Sandbox(sandbox).Events(ctx) {
		if err != nil {
			return nil, err
		}
		took[step] += milliseconds(e.Time.Sub(begin))
		begin = e.Time
		switch e.Kind {
		case protocol.SandboxAccepted:
			step = "place"
		case protocol.SandboxAssigned:
			step = "tell"
		case protocol.SandboxPreparing:
			step = e.Details.Phase
		case protocol.SandboxReady:
			return took, nil
		}
	}
	return nil, fmt.Errorf("sandbox %s never became ready", sandbox)
}

// measureStop measures how long the stop of an idle sandbox and its resume take.
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
