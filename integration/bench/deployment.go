package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// image is what all sandboxes and containers run; `make image` makes it.
const image = "boxfleet/demo:busybox"

// deployment is a Boxfleet under test, and its client.
type deployment struct {
	role   role
	server *part.Process // NATS, coordinator, and the worker unless that is apart
	worker *part.Process // where it is apart
	client *sdk.Client
	id     string
}

// deploy starts a deployment below dir and waits until it takes work.
func deploy(ctx context.Context, r role, workerApart bool) (_ *deployment, err error) {
	r.Server, r.Worker = true, !workerApart
	d := &deployment{role: r}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.end())
		}
	}()
	if d.server, err = part.Start(roleVariable, r); err != nil {
		return d, err
	}
	var h hello
	if err := d.server.Answer(ctx, &h); err != nil {
		return d, err
	}
	d.id, d.role.URL = h.Deployment, h.URL
	if workerApart {
		if err := d.startWorker(); err != nil {
			return d, err
		}
		if err := d.worker.Answer(ctx, new(hello)); err != nil {
			return d, err
		}
	}
	connecting, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	d.client, err = sdk.Connect(connecting, sdk.Options{URL: h.URL, Name: "bench-client"})
	return d, err
}

// startWorker starts the worker that is apart, again after it was killed.
func (d *deployment) startWorker() (err error) {
	r := d.role
	r.Server, r.Worker = false, true
	d.worker, err = part.Start(roleVariable, r)
	return err
}

// end deletes the sandboxes, kills the deployment, and removes what is left of it on the engine. It
// has a time of its own: it runs also after an interrupt. A worker that were killed in the middle of a
// create could leave an Engine that goes on with it.
func (d *deployment) end() error {
	var errs []error
	if d.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := d.client.DeleteByLabels(ctx, benchLabel)
		errs = append(errs, err)
		d.client.Close()
	}
	for _, p := range []*part.Process{d.worker, d.server} {
		if p != nil {
			p.Kill()
		}
	}
	if d.id != "" {
		errs = append(errs, sweep(d.role.Engine, d.id))
	}
	return errors.Join(errs...)
}

// benchLabel is on every sandbox.
var benchLabel = map[string]string{"made-by": "bench"}

// spec is a sandbox that is bounded, and not slowed, by its limits.
func spec() protocol.SandboxSpec {
	return protocol.SandboxSpec{
		Image: image, Labels: benchLabel, CPU: float64(runtime.NumCPU()), Memory: 256 << 20, Grace: protocol.Duration(time.Second),
	}
}

// sandboxes creates n sandboxes, four at a time.
func (d *deployment) sandboxes(ctx context.Context, n int, spec protocol.SandboxSpec) ([]*sdk.Sandbox, error) {
	made := make([]*sdk.Sandbox, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i := range made {
		group.Go(func() (err error) {
			made[i], err = d.client.Create(ctx, spec)
			return err
		})
	}
	return made, group.Wait()
}

// sweep removes everything of a deployment from the engine, in a time of its own.
func sweep(engine, deployment string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := docker.Connect(ctx, docker.Config{Host: engine, Deployment: deployment, Fence: docker.Unfenced})
	if err != nil {
		return err
	}
	defer e.Close()
	containers, err := e.Containers(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(4)
	for _, c := range containers {
		group.Go(func() error { return e.RemoveContainer(ctx, c.ID) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	networks, err := e.Networks(ctx)
	if err != nil {
		return err
	}
	for _, n := range networks {
		if err := e.RemoveNetwork(ctx, n.ID); err != nil {
			return err
		}
	}
	wall := firewall.New(firewall.Config{Deployment: deployment, Engine: e.Address()})
	defer wall.Close()
	if err := wall.Remove(); err != nil {
		return err
	}
	return e.RemoveHostID(ctx)
}

// buildSupervisor builds the supervisor of this source into dir.
func buildSupervisor(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "boxfleet-supervisor")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path,
		"github.com/boxfleet/boxfleet/cmd/boxfleet-supervisor")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the supervisor: %w\n%s", err, out)
	}
	return path, nil
}
