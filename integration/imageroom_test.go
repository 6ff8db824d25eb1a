package integration

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/integration/registry"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker"
)

// TestQ13_UnusedImagesGoWhenTheFileSystemFills fills an engine's file system of 128 MiB above the high mark. The worker
// then removes images until the used space is below the low mark. It keeps images that are in use, images that are
// configured to be kept, and images that a sandbox waits for.
func TestQ13_UnusedImagesGoWhenTheFileSystemFills(t *testing.T) {
	t.Parallel()
	const size, high, low = 128 * mebibyte, 50, 45 // high and low are percentages: 64 and 57.6 MiB
	e, main := engines.StartSmall(t, "small", size), engines.Default(t)
	r := registry.Start(t, false)
	door, back := r.Open(e.Listen()), r.Open(main.Listen())
	push := func(name string, size int) string {
		r.Push(main.Host, back, fleet.Image, name, size)
		return door.Host + "/" + name
	}
	kept, used, large, waited, small := push("kept:1", mebibyte), push("used:1", 10*mebibyte), push("large:1",
		20*mebibyte),
		push("waited:1", 6*mebibyte), push("small:1", mebibyte)
	huge := push("huge:1", 47*mebibyte)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Engine: e.Host,
		Images: worker.Images{Registries: []string{door.Host}, HighWater: high, LowWater: low, PrePull: []string{kept},
			Sweep: 200 * time.Millisecond}})
	ctx := f.Context(90 * time.Second)
	create := func(id, ref string) *sdk.Sandbox {
		t.Helper()
		s, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID(id))
		if err != nil {
			t.Fatalf("create %s: %v", id, err)
		}
		return s
	}
	// fill brings the used space of the file system to the given number of bytes with a foreign file.
	filler := filepath.Join(e.Data(), "filler")
	fill := func(bytes int64) {
		t.Helper()
		if err := os.RemoveAll(filler); err != nil {
			t.Fatal(err)
		}
		if more := bytes - usedBytes(t, e.Data()); more > 0 {
			if err := os.WriteFile(filler, make([]byte, more), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	stay := func(when string, refs ...string) {
		t.Helper()
		time.Sleep(time.Second) // several sweeps in this time must remove nothing
		got := imagesOf(t, e.Host)
		for _, ref := range refs {
			if !strings.Contains(got, ref) {
				t.Errorf("%s: %s went: %s", when, ref, got)
			}
		}
	}
	goes := func(ref string) {
		t.Helper()
		imageGoes(t, f, e.Host, ref)
	}

	create("used", used)
	// The large image also has the longest time since its last use, so it is removed first.
	for _, image := range []struct{ id, ref string }{{"large", large}, {"waited", waited}, {"small", small}} {
		if err := create(image.id, image.ref).Delete(ctx); err != nil {
			t.Fatal(err)
		}
	}
	f.Eventually(20*time.Second, "the configured image is pulled", func() error {
		if got := imagesOf(t, e.Host); !strings.Contains(got, kept) {
			return errors.New(got)
		}
		return nil
	})
	if n := usedBytes(t, e.Data()); n > size/100*low {
		t.Fatalf("%d bytes are used before any image should be removed", n)
	}
	stay("below the marks", kept, used, large, waited, small)

	// The removal of the large image frees enough space.
	fill(size / 100 * (high + 3))
	goes(large)
	stay("below the low mark", kept, used, waited, small)

	// A sandbox waits for one of the images. Its worker asks the registry whether the image has changed, and the
	// registry answers slowly.
	door.Fault(func(q *http.Request) registry.Fault {
		if strings.Contains(q.URL.Path, "/waited/manifests/") {
			return registry.Fault{Delay: 4 * time.Second}
		}
		return registry.Fault{}
	})
	blobs := door.Passed("/v2/waited/blobs/")
	s, err := f.Client.Create(ctx, imageSpec(f, waited, protocol.PullAlways), sdk.WithID("waits"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(10*time.Second, "the sandbox waits for the registry", func() error {
		if err := s.Refresh(ctx); err != nil || s.Info().Pull == nil {
			return fmt.Errorf("%+v, %w", s.Info(), err)
		}
		return nil
	})
	fill(size / 100 * (high + 20))
	goes(small)
	stay("above the high mark", kept, used, waited)
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if n := door.Passed("/v2/waited/blobs/"); n != blobs {
		t.Errorf("the image that was waited for was pulled again, in %d requests", n-blobs)
	}
	stay("above the high mark, in use", kept, used, waited)

	// If a pull fills the file system, the worker frees space again.
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := create("small-again", small).Delete(ctx); err != nil {
		t.Fatal(err)
	}
	stay("below the marks again", small)
	create("huge", huge)
	goes(small)
	stay("after a large pull", kept, used, waited, huge)
	f.Judge()
}

// imageGoes waits until a host does not have an image any more.
func imageGoes(t *testing.T, f *fleet.Fleet, host, ref string) {
	t.Helper()
	f.Eventually(10*time.Second, ref+" goes", func() error {
		if got := imagesOf(t, host); strings.Contains(got, ref) {
			return errors.New(got)
		}
		return nil
	})
}

// TestQ13_AnImageStaysThatAQueuedSandboxWaitsFor creates a sandbox that waits for a host and may not pull its image.
// The worker keeps that image. It also removes no image while no coordinator can say which images are needed.
func TestQ13_AnImageStaysThatAQueuedSandboxWaitsFor(t *testing.T) {
	t.Parallel()
	h := newWarehouse(t, false)
	engines.LoadImage(t, h.engine, fleet.Image)
	awaited, _ := h.push("awaited:1", mebibyte)
	other, _ := h.push("other:1", mebibyte)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	role := fleet.Role{Engine: h.engine.Host, Slots: 1,
		Images: worker.Images{Registries: []string{h.door.Host}, HighWater: 100, Sweep: 200 * time.Millisecond}}
	w := f.Worker("w1", role)
	ctx := f.Context(90 * time.Second)
	for id, ref := range map[string]string{"first": awaited, "second": other} {
		s, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(ctx); err != nil {
			t.Fatal(err)
		}
	}
	holder := f.Create("holder") // takes the only slot
	s, err := f.Client.Create(ctx, imageSpec(f, awaited, protocol.PullNever), sdk.WithID("waits"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	f.Processes("coordinator")[0].Stop()
	role.Images.MaxBytes = 1 // from now on all images exceed the limit
	w = f.Worker("w1", role)
	f.Eventually(10*time.Second, "the worker wants to remove images", func() error {
		if !strings.Contains(w.Log(), "no coordinator answers") {
			return errors.New("it has not asked a coordinator yet")
		}
		return nil
	})
	if got := imagesOf(t, h.engine.Host); !strings.Contains(got, awaited) || !strings.Contains(got, other) {
		t.Errorf("without a coordinator, an image was removed; left: %s", got)
	}
	f.Coordinator("c2", fleet.Role{})
	imageGoes(t, f, h.engine.Host, other)
	time.Sleep(time.Second) // several more sweeps in this time must remove nothing
	if got := imagesOf(t, h.engine.Host); !strings.Contains(got, awaited) {
		t.Errorf("an image that a sandbox waits for was removed; left: %s", got)
	}
	if err := holder.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	imageGoes(t, f, h.engine.Host, awaited)
	f.Judge()
}

// usedBytes returns the used space of a file system.
func usedBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Blocks-s.Bfree) * s.Bsize
}
