package docker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// BenchmarkInspect compares a call of this package with the same call of the bare Docker client. The difference is the
// cost of the deadline, the fence and the translation of errors.
func BenchmarkInspect(b *testing.B) {
	e, bare := direct(b)
	id := e.create(b, e.sleeper(), true)
	b.Run("bare", func(b *testing.B) {
		measure(b, func() error { _, err := bare.ContainerInspect(b.Context(), id); return err })
	})
	b.Run("engine", func(b *testing.B) {
		measure(b, func() error { _, err := e.Inspect(b.Context(), id); return err })
	})
}

func BenchmarkRead(b *testing.B) {
	e, _ := direct(b)
	e.create(b, e.sleeper(), true)
	for name, call := range map[string]func() error{
		"Ping":        func() error { return e.Ping(b.Context()) },
		"Containers":  func() error { _, err := e.Containers(b.Context()); return err },
		"Networks":    func() error { _, err := e.Networks(b.Context()); return err },
		"UsedSubnets": func() error { _, err := e.UsedSubnets(b.Context()); return err },
		"Image":       func() error { _, err := e.FindImage(b.Context(), dockertest.Image); return err },
	} {
		b.Run(name, func(b *testing.B) { measure(b, call) })
	}
}

// BenchmarkLife measures each step in the life of a container and its network separately, with this package and with
// the bare Docker client.
func BenchmarkLife(b *testing.B) {
	e, bare := direct(b)
	subnet := freeSubnet(b, e.Engine)
	took := map[string][]time.Duration{}
	step := func(name string, call func() error) {
		start := time.Now()
		check(b, call())
		took[name] = append(took[name], time.Since(start))
	}
	ctx := b.Context()
	for b.Loop() {
		spec := e.sleeper()
		spec.Network = e.name("bench")
		step("network", func() error { return e.CreateNetwork(ctx, docker.NetworkSpec{Name: spec.Network, Subnet: subnet}) })
		var id string
		step("create", func() (err error) { id, err = e.CreateContainer(ctx, spec); return err })
		step("start", func() error { return e.StartContainer(ctx, id) })
		step("remove", func() error { return e.RemoveContainer(ctx, id) })
		var made container.CreateResponse
		step("bare-create", func() (err error) {
			made, err = bare.ContainerCreate(ctx, &container.Config{Image: spec.Image, Entrypoint: spec.Entrypoint},
				&container.HostConfig{NetworkMode: container.NetworkMode(spec.Network)}, nil, nil, spec.Name)
			return err
		})
		step("bare-start", func() error { return bare.ContainerStart(ctx, made.ID, container.StartOptions{}) })
		step("bare-remove", func() error {
			return bare.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
		})
		step("network-remove", func() error { return e.RemoveNetwork(ctx, spec.Network) })
	}
	for name, durations := range took {
		b.ReportMetric(p50(durations)/1e6, name+"-p50-ms")
	}
}

// direct returns a bench whose client connects to the engine without the proxy, and a bare Docker client of the same
// engine.
func direct(b *testing.B) (*bench, *client.Client) {
	e := newBench(b)
	host := "unix://" + dockertest.Socket(b)
	e.Engine = connect(b, docker.Config{Host: host, Deployment: e.deployment, Fence: docker.Unfenced})
	bare, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	check(b, err)
	b.Cleanup(func() { check(b, bare.Close()) })
	return e, bare
}

func measure(b *testing.B, call func() error) {
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		check(b, call())
		took = append(took, time.Since(start))
	}
	b.ReportMetric(p50(took)/1e3, "p50-µs")
}

func p50(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)/2])
}
