package integration

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/integration/registry"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker"
)

const mebibyte = 1 << 20

// warehouse is a registry with a door before an engine of its own.
type warehouse struct {
	*registry.Registry
	engine *engines.Engine
	door   *registry.Door // as the engine sees it
	back   *registry.Door // as the machine's engine sees it, to push through
	main   *engines.Engine
}

func newWarehouse(t *testing.T, private bool) *warehouse {
	t.Helper()
	e := engines.Start(t, "images")
	main := engines.Default(t)
	r := registry.Start(t, private)
	return &warehouse{Registry: r, engine: e, main: main, door: r.Open(e.Listen()), back: r.Open(main.Listen())}
}

// push puts a new image of so many bytes into the registry, and returns its reference for the engine,
// and its digest.
func (w *warehouse) push(name string, size int) (ref, digest string) {
	return w.door.Host + "/" + name, w.Push(w.main.Host, w.back, fleet.Image, name, size)
}

func imageSpec(f *fleet.Fleet, ref, pull string) protocol.SandboxSpec {
	spec := f.Spec()
	spec.Image, spec.Pull = ref, pull
	return spec
}

// pulls lists what the history of a sandbox says of pulls.
func pulls(f *fleet.Fleet, id string) []protocol.PullProgress {
	f.TB.Helper()
	var all []protocol.PullProgress
	for e, err := range f.Client.Events(f.Context(10*time.Second), id, 1, false) {
		if err != nil {
			f.TB.Fatal(err)
		}
		if e.Phase != nil && e.Phase.Pull != nil {
			all = append(all, *e.Phase.Pull)
		}
	}
	return all
}

func hasError(t *testing.T, what string, err error, code protocol.Code, reason string) {
	t.Helper()
	if !errors.Is(err, &protocol.Error{Code: code, Reason: reason}) {
		t.Errorf("%s: got %v, want %s (%s)", what, err, code, reason)
	}
}

// TestImagesArePulled takes one engine, and a registry with a door, through what a pull may be and
// may fail with.
func TestImagesArePulled(t *testing.T) {
	t.Parallel()
	h := newWarehouse(t, false)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	const stall = 3 * time.Second
	f.Worker("w1", fleet.Role{Engine: h.engine.Host, Images: worker.Images{PullStall: stall}})
	ctx := f.Context(90 * time.Second)

	f.Run(t, "an image is pulled once for all who wait, with progress in the history, and its digest is on the sandbox", func(t *testing.T) {
		ref, digest := h.push("shared:1", 6*mebibyte)
		h.door.Fault(registry.Layers(registry.Fault{PerSecond: mebibyte}))
		defer h.door.Fault(nil)
		const n = 4
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				id := fmt.Sprintf("shared-%d", i)
				s, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID(id))
				if err != nil {
					t.Errorf("create %s: %v", id, err)
					return
				}
				if got := s.Info().Digest; got != digest {
					t.Errorf("%s has the digest %s, the registry %s", id, got, digest)
				}
				if s.Info().Pull != nil {
					t.Errorf("%s is ready, and shows a pull: %+v", id, s.Info().Pull)
				}
			})
		}
		wg.Wait()
		// The base's layer, its own, and the configuration.
		if n := h.door.Passed("GET", "/v2/shared/blobs/"); n != 3 {
			t.Errorf("%d blobs were fetched, want 3", n)
		}
		for i := range n {
			got := pulls(f, fmt.Sprintf("shared-%d", i))
			if len(got) < 3 || len(got) > 8 {
				t.Errorf("sandbox %d has %d events of progress: %+v", i, len(got), got)
				continue
			}
			first, middle, last := got[0], got[len(got)-2], got[len(got)-1]
			if first.Complete || middle.Complete || middle.Done == 0 || middle.Done >= middle.Total {
				t.Errorf("sandbox %d: progress %+v", i, got)
			}
			if !last.Complete || last.Layers != 2 || last.LayersDone != 2 || last.Done != last.Total || last.Total < 6*mebibyte {
				t.Errorf("sandbox %d ends with %+v", i, last)
			}
		}
	})

	f.Run(t, "what is on the host is not pulled, unless always is said; never pulls nothing", func(t *testing.T) {
		ref, one := h.push("moving:1", 1000)
		_, err := f.Client.Create(ctx, imageSpec(f, ref, protocol.PullNever), sdk.WithID("never-1"))
		hasError(t, "never, and not there", err, protocol.NotFound, protocol.ReasonImageNotFound)
		digestOf := func(id, pull string) string {
			s, err := f.Client.Create(ctx, imageSpec(f, ref, pull), sdk.WithID(id))
			if err != nil {
				t.Fatal(err)
			}
			return s.Info().Digest
		}
		if got := digestOf("missing-1", protocol.PullMissing); got != one {
			t.Errorf("missing, and not there: %s, want %s", got, one)
		}
		_, two := h.push("moving:1", 1000)
		if got := digestOf("missing-2", protocol.PullMissing); got != one {
			t.Errorf("missing, and there: %s, want the old %s", got, one)
		}
		if got := digestOf("never-2", protocol.PullNever); got != one {
			t.Errorf("never, and there: %s, want the old %s", got, one)
		}
		if got := digestOf("always", protocol.PullAlways); got != two {
			t.Errorf("always: %s, want the new %s", got, two)
		}
		if got := digestOf("never-3", protocol.PullNever); got != two {
			t.Errorf("never, after that: %s, want the new %s", got, two)
		}
	})

	f.Run(t, "an image that is not there, and a registry that is not there, have their reasons", func(t *testing.T) {
		_, err := f.Client.Create(ctx, imageSpec(f, h.door.Host+"/absent:1", ""), sdk.WithID("absent"))
		hasError(t, "no such repository", err, protocol.NotFound, protocol.ReasonImageNotFound)
		_, err = f.Client.Create(ctx, imageSpec(f, h.door.Host+"/shared:absent", ""), sdk.WithID("no-tag"))
		hasError(t, "no such tag", err, protocol.NotFound, protocol.ReasonImageNotFound)
		_, err = f.Client.Create(ctx, imageSpec(f, "127.0.0.1:1/absent:1", ""), sdk.WithID("unreachable"))
		hasError(t, "no registry", err, protocol.Unavailable, protocol.ReasonRegistryUnreachable)
		if got := pulls(f, "unreachable"); len(got) == 0 {
			t.Error("no registry: the tries are not in the history")
		}
	})

	f.Run(t, "a registry that answers again is not given up", func(t *testing.T) {
		ref, _ := h.push("again:1", 1000)
		tries := 0
		var mu sync.Mutex
		h.door.Fault(func(q *http.Request) registry.Fault {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(q.URL.Path, "/again/manifests/") && tries < 2 {
				tries++
				return registry.Fault{Status: 503}
			}
			return registry.Fault{}
		})
		defer h.door.Fault(nil)
		if _, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID("again")); err != nil {
			t.Errorf("got %v", err)
		}
	})

	f.Run(t, "a pull that stands still ends, and says so; the next one works", func(t *testing.T) {
		ref, _ := h.push("stalling:1", 4*mebibyte)
		h.door.Fault(registry.Layers(registry.Fault{StallAt: mebibyte}))
		defer h.door.Fault(nil)
		started := time.Now()
		_, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID("stalling"))
		hasError(t, "stalling", err, protocol.Unavailable, protocol.ReasonImagePullStalled)
		if took := time.Since(started); took < stall || took > 4*stall {
			t.Errorf("it took %s", took)
		}
		h.door.Fault(nil)
		if _, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID("moving-again")); err != nil {
			t.Errorf("after that: %v", err)
		}
	})

	f.Run(t, "delete ends the pull of a sandbox that is being created, if nobody else waits for it", func(t *testing.T) {
		ref, _ := h.push("deleted:1", 20*mebibyte)
		h.door.Fault(registry.Layers(registry.Fault{PerSecond: mebibyte}))
		defer h.door.Fault(nil)
		gone := h.door.GivenUp()
		for _, id := range []string{"deleted-1", "deleted-2"} {
			if _, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID(id), sdk.WithWait(false)); err != nil {
				t.Fatal(err)
			}
		}
		inPull := func(id string) func() error {
			return func() error {
				s, err := f.Client.Get(ctx, id)
				if err == nil && (s.Info().Pull == nil || s.Info().Pull.Done == 0) {
					err = fmt.Errorf("it shows %+v", s.Info().Pull)
				}
				return err
			}
		}
		f.Eventually(10*time.Second, "both wait for the pull", inPull("deleted-1"))
		f.Eventually(10*time.Second, "both wait for the pull", inPull("deleted-2"))
		deleteWithin := func(id string) {
			started := time.Now()
			s, err := f.Client.Get(ctx, id)
			if err == nil {
				err = s.Delete(ctx)
			}
			if took := time.Since(started); err != nil || took > 3*time.Second {
				t.Errorf("delete %s: %v after %s", id, err, took)
			}
		}
		deleteWithin("deleted-1")
		time.Sleep(time.Second)
		if n := h.door.GivenUp(); n != gone {
			t.Error("the pull ended while somebody waits for it")
		}
		deleteWithin("deleted-2")
		f.Eventually(5*time.Second, "the engine gives the download up", func() error {
			if h.door.GivenUp() == gone {
				return errors.New("it does not")
			}
			return nil
		})
	})
}
