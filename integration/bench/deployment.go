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

	"github.com/boxfleet/boxfleet/integration/access"
	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// image is the image of all sandboxes and containers; `make image` builds it.
const image = "boxfleet/demo:busybox"

// deployment is the Boxfleet deployment that is measured, with a client.
type deployment struct {
	role   role
	server *part.Process // NATS, the coordinator and, if worker is nil, the worker
	worker *part.Process // the worker, if it has its own process
	client *sdk.Client
	id     string
}

// deployWithRights does the same as deploy, with credentials for each role unless the options say otherwise.
func (b *bench) deployWithRights(ctx context.Context, r role, workerApart bool) (*deployment, error) {
	if !b.insecure {
		var err error
		if r.Access, err = access.New(r.Dir); err != nil {
			return nil, err
		}
	}
	return deploy(ctx, r, workerApart)
}

// deploy starts a deployment below r.Dir and waits until it accepts work.
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
	creds, err := r.Access.Of(rights.Identity{Role: rights.User, Name: "client", Tenant: protocol.DefaultTenant})
	if err != nil {
		return d, err
	}
	d.client, err = sdk.Connect(connecting, sdk.Options{URL: h.URL, Creds: creds, TLS: r.TLS, Name: "bench-client"})
	return d, err
}

// startWorker starts the worker in its own process. A phase that kills the worker calls startWorker again.
func (d *deployment) startWorker() (err error) {
	r := d.role
	r.Server, r.Worker = false, true
	d.worker, err = part.Start(roleVariable, r)
	return err
}

// end deletes the sandboxes, kills the deployment, and removes its remains from the engine. It has its own timeout,
// because it also runs after an interrupt. It deletes the sandboxes first: if the worker were killed during a create,
// the Engine could still finish that create.
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

// benchLabel is the label of every sandbox of the bench.
var benchLabel = map[string]string{"made-by": "bench"}

// spec returns a sandbox spec. Its limits are too high to slow the sandbox down.
func spec() protocol.SandboxSpec {
	return protocol.SandboxSpec{
		Image: image, Labels: benchLabel, CPU: float64(runtime.NumCPU()), Memory: 256 << 20,
		Grace: protocol.Duration(time.Second),
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

// sweep removes everything that belongs to a deployment from the engine. It has its own timeout.
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

// buildSupervisor builds the supervisor from this source tree into dir.
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
