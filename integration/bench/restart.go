package main

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// measureRestart kills a worker with twenty sandboxes and restarts it. It measures the time from the start of the
// worker's process to the end of the first exec, and the memory of all processes.
func measureRestart(ctx context.Context, b *bench) (err error) {
	r := b.role
	r.Dir = path.Join(b.dir, "apart")
	d, err := b.deployWithRights(ctx, r, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.end()) }()
	const sandboxes = 20
	small := spec()
	small.Memory = 64 << 20
	boxes, err := d.sandboxes(ctx, sandboxes, small)
	if err != nil {
		return err
	}
	m := &measurement{Name: fmt.Sprintf("worker restart with %d sandboxes to the first exec", sandboxes),
		Unit: unitMilliseconds, Target: target{ofP50, 500}}
	for i := range b.pick(11, 3) {
		took, err := d.restartWorker(ctx, boxes[i%sandboxes])
		if err != nil {
			return err
		}
		m.Ours = append(m.Ours, took)
	}
	b.add(m)
	for _, s := range boxes { // run an exec in every sandbox before reading the worker's memory
		if err := execTrue(ctx, s); err != nil {
			return err
		}
	}
	return errors.Join(b.fleetMemory(ctx, d, sandboxes), b.restingCost(ctx, d, boxes))
}

func (d *deployment) restartWorker(ctx context.Context, s *sdk.Sandbox) (float64, error) {
	d.worker.Kill()
	took, err := timed(func() error {
		if err := d.startWorker(); err != nil {
			return err
		}
		return execTrue(ctx, s)
	})
	if err != nil {
		return took, fmt.Errorf("%w; the worker logged:\n%s", err, d.worker.LogEnd())
	}
	return took, d.worker.Answer(ctx, new(hello))
}

// fleetMemory measures the memory of the supervisors and of the processes of a deployment. The worker of the deployment
// must have its own process.
func (b *bench) fleetMemory(ctx context.Context, d *deployment, sandboxes int) error {
	supervisors, err := supervisorsOf(ctx, d)
	if err != nil {
		return err
	}
	with := fmt.Sprintf(", %d sandboxes", sandboxes)
	for _, p := range []struct {
		name   string
		pids   []int
		target target
	}{
		{"memory of NATS and coordinator" + with, []int{d.server.Pid()}, target{}},
		{"memory of the worker" + with, []int{d.worker.Pid()}, target{ofWorst, 80}},
		{"memory of a supervisor", supervisors, target{ofWorst, 8}},
	} {
		rss := &measurement{Name: p.name, Unit: unitMemory, Target: p.target}
		pss := &measurement{Name: "  proportional share (PSS)", Unit: unitMemory}
		for _, pid := range p.pids {
			r, s, err := part.Resident(pid)
			if err != nil {
				return err
			}
			rss.Ours, pss.Ours = append(rss.Ours, r), append(pss.Ours, s)
		}
		b.add(rss)
		b.add(pss)
	}
	return nil
}

// supervisorsOf lists the host process ids of the supervisors of all sandboxes of the deployment.
func supervisorsOf(ctx context.Context, d *deployment) ([]int, error) {
	e, err := docker.Connect(ctx, docker.Config{Host: d.role.Engine, Deployment: d.id, Fence: docker.Unfenced})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	containers, err := e.Containers(ctx)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, c := range containers {
		c, err := e.Inspect(ctx, c.ID)
		if err != nil {
			return nil, err
		}
		pids = append(pids, c.Pid)
	}
	return pids, nil
}
