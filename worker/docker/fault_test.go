package docker_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// calls returns a call of each method that sends a request to the engine. The call of Events waits for the end of its
// stream.
func calls() map[string]func(context.Context, *bench, string) error {
	all := maps.Clone(changing)
	all["Ping"] = func(ctx context.Context, b *bench, _ string) error { return b.Ping(ctx) }
	all["Info"] = func(ctx context.Context, b *bench, _ string) error { _, err := b.Info(ctx); return err }
	all["Inspect"] = func(ctx context.Context, b *bench, id string) error { _, err := b.Inspect(ctx, id); return err }
	all["Containers"] = func(ctx context.Context, b *bench, _ string) error { _, err := b.Containers(ctx); return err }
	all["Networks"] = func(ctx context.Context, b *bench, _ string) error { _, err := b.Networks(ctx); return err }
	all["UsedSubnets"] = func(ctx context.Context, b *bench, _ string) error { _, err := b.UsedSubnets(ctx); return err }
	all["Events"] = func(ctx context.Context, b *bench, _ string) error {
		_, failed := b.Events(ctx, func() {}, func() {})
		return <-failed
	}
	return all
}

func TestCallsToAHungEngineFailWithinTheirLimit(t *testing.T) {
	t.Parallel()
	const timeout = 6 * time.Second // connecting may take a third of this timeout
	b := newBench(t, func(c *docker.Config) { c.CallTimeout, c.StallTimeout, c.PullStall = timeout, timeout, timeout })
	b.proxy.Pause()
	var ended sync.WaitGroup // goroutines, because only as many parallel subtests run at once as the machine has cores
	for name, call := range calls() {
		ended.Go(func() {
			// Without the limit under test, this deadline ends the call.
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			start := time.Now()
			err := call(ctx, b, "absent")
			if !errors.Is(err, docker.ErrEngineUnavailable) {
				t.Errorf("%s: got %v, want %v", name, err, docker.ErrEngineUnavailable)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("%s took %s, want at most 20 s", name, took)
			}
		})
	}
	ended.Wait()
}

func TestTheCallersDeadlineAndCancelAreDistinguished(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.proxy.Pause()
	defer b.proxy.Resume()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Ping(short); !errors.Is(err, docker.ErrEngineUnavailable) {
		t.Errorf("after the caller's deadline: got %v, want %v", err, docker.ErrEngineUnavailable)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Inspect(gone, "x"); protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("after the caller's cancel: got %v, want cancelled", err)
	}
}

// pulls are the calls that bring an image to the engine. Their errors say why the image could not be pulled.
var pulls = []string{"PullImage", "TakeImage", "PullAside"}

// An object may be called absent only if the engine says that it does not exist. An engine that fails or does not
// answer proves nothing about the object.
func TestNoFaultIsMistakenForAnAbsentObject(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault dockertest.Fault
		want  error
	}{
		"connection closed before the request was handled": {dockertest.Fault{Drop: true}, docker.ErrEngineUnavailable},
		"connection closed before the response was sent":   {dockertest.Fault{DropLate: true}, docker.ErrEngineUnavailable},
		"internal error": {dockertest.Fault{Status: 500}, &protocol.Error{Code: protocol.Unavailable,
			Reason: docker.ReasonEngineError}},
		"service unavailable": {dockertest.Fault{Status: 503}, &protocol.Error{Code: protocol.Unavailable,
			Reason: docker.ReasonEngineError}},
		"no such page": {dockertest.Fault{Status: 404, Message: "page not found"},
			&protocol.Error{Code: protocol.Unavailable, Reason: docker.ReasonEngineError}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(c *docker.Config) { c.CallTimeout = 6 * time.Second })
			b.proxy.Inject(func(r *http.Request) dockertest.Fault { return c.fault })
			for method, call := range calls() {
				if slices.Contains(pulls, method) || method == "Ping" || method == "Events" || method == "Info" {
					continue // pulls and Events are tested below; the other calls name no object
				}
				err := call(t.Context(), b, "absent")
				if !errors.Is(err, c.want) || docker.IsNotFound(err) {
					t.Errorf("%s: got %v, want %v", method, err, c.want)
				}
			}
			for _, method := range append(slices.Clone(pulls), "Events") {
				if err := calls()[method](t.Context(), b, "absent"); protocol.CodeOf(err) != protocol.Unavailable {
					t.Errorf("%s: got %v, want unavailable", method, err)
				}
			}
			// The engine may have created the tag although its response was lost.
			b.proxy.Inject(nil)
			if err := calls()["RemoveImage"](t.Context(), b, ""); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnUnreachableEngineIsUnavailable(t *testing.T) {
	t.Parallel()
	start := time.Now()
	_, err := docker.Connect(t.Context(), docker.Config{
		Host: "unix://" + t.TempDir() + "/absent.sock", Deployment: "d", Fence: docker.Unfenced,
	})
	if !errors.Is(err, docker.ErrEngineUnavailable) || time.Since(start) > 5*time.Second {
		t.Errorf("connecting: got %v after %s, want %v within 5 s", err, time.Since(start), docker.ErrEngineUnavailable)
	}
}

func TestARemovalWhoseResponseWasLostCanBeRepeated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.create(t, b.sleeper(), true)
	b.proxy.Inject(func(r *http.Request) dockertest.Fault {
		return dockertest.Fault{DropLate: r.Method == http.MethodDelete}
	})
	if err := b.RemoveContainer(t.Context(), id); !errors.Is(err, docker.ErrEngineUnavailable) {
		t.Errorf("the removal whose response was lost: got %v, want %v", err, docker.ErrEngineUnavailable)
	}
	b.proxy.Inject(nil)
	check(t, b.RemoveContainer(t.Context(), id))
}
