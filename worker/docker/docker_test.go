package docker_test

import (
	"context"
	"crypto/rand"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// within is how long tests wait for a condition.
const within = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed())) }

// bench is a deployment for one test, on the machine's engine behind a proxy. The deployment's objects are removed when
// the test ends.
type bench struct {
	*docker.Engine
	proxy      *dockertest.Proxy
	host       string
	deployment string
}

func newBench(tb testing.TB, change ...func(*docker.Config)) *bench {
	tb.Helper()
	socket := dockertest.Socket(tb)
	dockertest.RequireImage(tb, socket)
	b := &bench{deployment: "test-" + strings.ToLower(rand.Text()[:10])}
	b.proxy, b.host = dockertest.StartProxy(tb, socket)
	b.Engine = b.connect(tb, change...)

	// The cleanup does not use the proxy, because the test may have closed or paused the proxy.
	direct := connect(tb, docker.Config{Host: "unix://" + socket, Deployment: b.deployment, Fence: docker.Unfenced})
	tb.Cleanup(func() { empty(tb, direct) })
	return b
}

// connect returns another client of the same deployment, which uses the same proxy.
func (b *bench) connect(tb testing.TB, change ...func(*docker.Config)) *docker.Engine {
	tb.Helper()
	cfg := docker.Config{Host: b.host, Deployment: b.deployment, Fence: docker.Unfenced}
	for _, c := range change {
		c(&cfg)
	}
	return connect(tb, cfg)
}

func connect(tb testing.TB, cfg docker.Config) *docker.Engine {
	tb.Helper()
	e, err := docker.Connect(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(e.Close)
	return e
}

func empty(tb testing.TB, e *docker.Engine) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	containers, err := e.Containers(ctx)
	check(tb, err)
	for _, c := range containers {
		check(tb, e.RemoveContainer(ctx, c.ID))
	}
	networks, err := e.Networks(ctx)
	check(tb, err)
	for _, n := range networks {
		check(tb, e.RemoveNetwork(ctx, n.ID))
	}
	check(tb, e.RemoveHostID(ctx))
}

// name returns the name of an object. No other test uses this name.
func (b *bench) name(what string) string { return "boxfleet-" + b.deployment + "-" + what }

// sleeper describes a container that runs until it gets TERM.
func (b *bench) sleeper() docker.ContainerSpec {
	return docker.ContainerSpec{
		Name: b.name("sleeper"), Image: dockertest.Image, Network: "none",
		Entrypoint: []string{"/bin/sh", "-c", "trap 'exit 3' TERM; touch /up; while :; do sleep 0.05; done"},
	}
}

// awaitUp waits until a sleeper has started and handles TERM.
func (b *bench) awaitUp(tb testing.TB, id string) {
	tb.Helper()
	eventually.Holds(tb, within, "the container is up", func() bool {
		_, there, err := b.PathMode(tb.Context(), id, "/up")
		check(tb, err)
		return there
	})
}

// create creates a container, and starts it if the parameter started is true.
func (b *bench) create(tb testing.TB, spec docker.ContainerSpec, started bool) string {
	tb.Helper()
	id, err := b.CreateContainer(tb.Context(), spec)
	check(tb, err)
	if started {
		check(tb, b.StartContainer(tb.Context(), id))
	}
	return id
}

// ended waits until the container has ended.
func (b *bench) ended(tb testing.TB, id string) docker.Container {
	tb.Helper()
	var c docker.Container
	eventually.Holds(tb, within, "the container ends", func() bool {
		var err error
		c, err = b.Inspect(tb.Context(), id)
		check(tb, err)
		return !c.Running && c.State != "created"
	})
	return c
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// freeSubnet returns a random small subnet that no network of the engine uses.
func freeSubnet(tb testing.TB, e *docker.Engine) netip.Prefix {
	tb.Helper()
	used, err := e.UsedSubnets(tb.Context())
	check(tb, err)
	var random [2]byte
	for range 1000 {
		_, _ = rand.Read(random[:]) // never fails
		candidate := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, random[0], random[1] &^ 15}), 28)
		free := true
		for _, u := range used {
			free = free && !u.Overlaps(candidate)
		}
		if free {
			return candidate
		}
	}
	tb.Fatal("no subnet is free below 10.201.0.0/16")
	return netip.Prefix{}
}
