package docker_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// reading are the methods that change nothing. They work without the host's lock.
var reading = map[string]bool{
	"Ping": true, "Info": true, "Inspect": true, "Containers": true, "Networks": true, "UsedSubnets": true,
	"Events": true, "Close": true, "PathMode": true, "Address": true, "ReadFile": true, "FindImage": true,
	"ImagesInUse": true, "ImageNames": true, "FollowImages": true, "Bridges": true, "LoginFor": true,
}

// changing are calls of all other methods, with arguments that could change something.
var changing = map[string]func(ctx context.Context, b *bench, id string) error{
	"HostID": func(ctx context.Context, b *bench, _ string) error { _, err := b.HostID(ctx); return err },
	"KeepHostID": func(ctx context.Context, b *bench, _ string) error {
		_, err := b.KeepHostID(ctx, "kept")
		return err
	},
	"RemoveHostID": func(ctx context.Context, b *bench, _ string) error { return b.RemoveHostID(ctx) },
	"LoadImage": func(ctx context.Context, b *bench, _ string) error {
		return b.LoadImage(ctx, strings.NewReader("not a tar"))
	},
	"ImportImage": func(ctx context.Context, b *bench, _ string) error {
		return b.ImportImage(ctx, strings.NewReader("not a tar"), "boxfleet/absent:none", nil)
	},
	"RemoveImage": func(ctx context.Context, b *bench, _ string) error {
		return b.RemoveImage(ctx, "boxfleet/absent:none")
	},
	"PullImage": func(ctx context.Context, b *bench, _ string) error {
		_, err := b.PullImage(ctx, "boxfleet/absent:none", nil)
		return err
	},
	"TakeImage": func(ctx context.Context, b *bench, _ string) error {
		archive := func(_ context.Context, w io.Writer, _ func(string, int64, int64)) error {
			_, err := io.WriteString(w, "not a tar")
			return err
		}
		return b.TakeImage(ctx, "boxfleet/absent:none", func(context.Context) (docker.Archive, error) { return archive, nil },
			nil)
	},
	"PullAside": func(ctx context.Context, b *bench, _ string) error {
		_, err := b.PullAside(ctx, dockertest.Image, "boxfleet/absent:none", func(string) {}, nil)
		return err
	},
	"TagImage": func(ctx context.Context, b *bench, _ string) error {
		return b.TagImage(ctx, dockertest.Image, "boxfleet/absent:none")
	},
	"CreateNetwork": func(ctx context.Context, b *bench, _ string) error {
		return b.CreateNetwork(ctx, docker.NetworkSpec{Name: b.name("fenced")})
	},
	"RemoveNetwork": func(ctx context.Context, b *bench, _ string) error {
		return b.RemoveNetwork(ctx, b.name("fenced"))
	},
	"CreateContainer": func(ctx context.Context, b *bench, _ string) error {
		_, err := b.CreateContainer(ctx, docker.ContainerSpec{Name: b.name("fenced"), Image: "x"})
		return err
	},
	"StartContainer": func(ctx context.Context, b *bench, id string) error { return b.StartContainer(ctx, id) },
	"StopContainer": func(ctx context.Context, b *bench, id string) error {
		return b.StopContainer(ctx, id, time.Second)
	},
	"KillContainer":   func(ctx context.Context, b *bench, id string) error { return b.KillContainer(ctx, id) },
	"RemoveContainer": func(ctx context.Context, b *bench, id string) error { return b.RemoveContainer(ctx, id) },
	"CopyTo": func(ctx context.Context, b *bench, id string) error {
		return b.CopyTo(ctx, id, "/", strings.NewReader("not a tar"))
	},
}

func TestNoChangeReachesTheEngineAgainstTheFence(t *testing.T) {
	t.Parallel()
	// The Docker client would rewrite an error with this text, and lose the fence's error.
	lost := protocol.Errorf(protocol.Unavailable, protocol.ReasonLeaseLost, "dial unix: connection refused")
	b := newBench(t, func(c *docker.Config) { c.Fence = func() error { return lost } })
	unfenced := b.connect(t)
	id, err := unfenced.CreateContainer(t.Context(), b.sleeper())
	check(t, err)
	b.proxy.Reset()

	methods := reflect.TypeFor[*docker.Engine]()
	for i := range methods.NumMethod() {
		name := methods.Method(i).Name
		change := changing[name]
		if change == nil {
			if !reading[name] {
				t.Errorf("method %s is new: list it as reading or changing", name)
			}
			continue
		}
		t.Run(name, func(t *testing.T) {
			if err := change(t.Context(), b, id); !errors.Is(err, lost) {
				t.Errorf("got %v, want the fence's error", err)
			}
		})
	}
	for _, r := range b.proxy.Mutations() {
		t.Errorf("the request %s %s reached the engine, although the fence refused it", r.Method, r.Path)
	}
}

func TestTheFenceLetsReadsPass(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *docker.Config) { c.Fence = func() error { return errors.New("lost") } })
	ctx := t.Context()
	_, infoErr := b.Info(ctx)
	_, containersErr := b.Containers(ctx)
	_, networksErr := b.Networks(ctx)
	_, subnetsErr := b.UsedSubnets(ctx)
	if err := errors.Join(b.Ping(ctx), infoErr, containersErr, networksErr, subnetsErr); err != nil {
		t.Error(err)
	}
}

func TestTheFenceIsCheckedForEveryChange(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	b := newBench(t, func(c *docker.Config) { c.Fence = func() error { asked <- struct{}{}; return nil } })
	id := b.create(t, b.sleeper(), true)
	check(t, b.RemoveContainer(t.Context(), id))
	if len(asked) != 6 || len(b.proxy.Mutations()) != 3 {
		t.Errorf("the fence was checked %d times, and %d changes reached the engine; want 3 changes with two checks each",
			len(asked), len(b.proxy.Mutations()))
	}
}

// A process may be paused between the fence's first check and the moment when the process writes the request.
func TestTheFenceIsCheckedAgainWhenARequestIsWritten(t *testing.T) {
	t.Parallel()
	lost, left := errors.New("lost"), new(atomic.Int64)
	b := newBench(t, func(c *docker.Config) {
		c.Fence = func() error {
			if left.Add(-1) < 0 {
				return lost
			}
			return nil
		}
	})
	left.Store(100)
	id := b.create(t, b.sleeper(), false)
	b.proxy.Reset()
	for range 3 { // the first start uses an old connection, the others use new connections
		left.Store(1)
		if err := b.StartContainer(t.Context(), id); !errors.Is(err, lost) {
			t.Errorf("got %v, want the fence's error", err)
		}
	}
	if n := len(b.proxy.Mutations()); n != 0 {
		t.Errorf("%d changes reached the engine, although the fence refused them", n)
	}
	left.Store(100)
	check(t, b.StartContainer(t.Context(), id))
}
