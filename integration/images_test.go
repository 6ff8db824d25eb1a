package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// warehouse is a registry, an engine that pulls from the registry, and the doors through which engines reach the
// registry.
type warehouse struct {
	*registry.Registry
	engine *engines.Engine
	door   *registry.Door // the door through which engine pulls images
	back   *registry.Door // door of main, the machine's own engine, which pushes images
	main   *engines.Engine
}

func newWarehouse(t *testing.T, private bool) *warehouse {
	t.Helper()
	e := engines.Start(t, "images")
	main := engines.Default(t)
	r := registry.Start(t, private)
	return &warehouse{Registry: r, engine: e, main: main, door: r.Open(e.Listen()), back: r.Open(main.Listen())}
}

// push puts a new image of the given size in bytes into the registry. It returns the image's digest, and the reference
// that the engine uses to pull it.
func (w *warehouse) push(name string, size int) (ref, digest string) {
	return w.door.Host + "/" + name, w.Push(w.main.Host, w.back, fleet.Image, name, size)
}

func imageSpec(f *fleet.Fleet, ref, pull string) protocol.SandboxSpec {
	spec := f.Spec()
	spec.Image, spec.Pull = ref, pull
	return spec
}

// pulls lists the progress reports of pulls in a sandbox's history.
func pulls(f *fleet.Fleet, id string) []protocol.PullProgress {
	f.TB.Helper()
	var all []protocol.PullProgress
	for e, err := range f.Client.Sandbox(id).Events(f.Context(10 * time.Second)) {
		if err != nil {
			f.TB.Fatal(err)
		}
		if e.Details != nil && e.Details.Pull != nil {
			all = append(all, *e.Details.Pull)
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

// pullStall is how long a pull in these tests may make no progress.
const pullStall = 3 * time.Second

// TestQ14_ImagesArePulled tests pulls of all kinds, and failures of pulls, with one engine and a registry behind a
// door.
func TestQ14_ImagesArePulled(t *testing.T) {
	t.Parallel()
	h := newWarehouse(t, false)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Engine: h.engine.Host,
		Images: worker.Images{PullStall: pullStall,
			Registries: []string{h.door.Host, "127.0.0.1:1", "docker.io", "public"}}})

	// The time limit of each subtest begins when its images are pushed.
	for _, pull := range []struct {
		what string
		run  func(*testing.T, *fleet.Fleet, *warehouse)
	}{
		{"one pull serves all waiting sandboxes; its progress is in the history, and each sandbox has the digest",
			onePullServesAllWaitingSandboxes},
		{"an image on the host is pulled only with always; never pulls nothing",
			onlyAlwaysPullsAnImageThatIsThere},
		{"a foreign image keeps its name on the host, whatever the registry has under that name",
			aForeignImageKeepsItsName},
		{"a missing image and an unreachable registry have distinct reasons",
			aMissingImageAndAnUnreachableRegistryDiffer},
		{"an image name cannot reach a service that only the host can reach",
			anImageNameReachesNoServiceOfTheHost},
		{"a pull survives a short outage of the registry", aPullSurvivesAShortOutage},
		{"a stalled pull fails with a reason, and the next one works", aStalledPullFails},
		{"a pull that only reports retries counts as stalled", aPullThatOnlyReportsRetriesHasStalled},
		{"delete ends the pull of a sandbox that is being created unless another sandbox waits for it",
			aDeleteEndsAPullThatNobodyElseNeeds},
	} {
		f.Run(t, pull.what, func(t *testing.T) { pull.run(t, f, h) })
	}
}

func onePullServesAllWaitingSandboxes(t *testing.T, f *fleet.Fleet, h *warehouse) {
	ref, digest := h.push("shared:1", 6*mebibyte)
	ctx := f.Context(time.Minute)
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
				t.Errorf("%s is ready but still shows a pull: %+v", id, s.Info().Pull)
			}
		})
	}
	wg.Wait()
	// three downloads: the base layer, the image's own layer, and the configuration
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
		if !last.Complete || last.Layers != 2 || last.LayersDone != 2 || last.Done != last.Total ||
			last.Total < 6*mebibyte {
			t.Errorf("sandbox %d ends with %+v", i, last)
		}
	}
}

func onlyAlwaysPullsAnImageThatIsThere(t *testing.T, f *fleet.Fleet, h *warehouse) {
	ref, one := h.push("moving:1", 1000)
	never := imageSpec(f, ref, protocol.PullNever)
	never.QueueTimeout = protocol.Duration(time.Second)
	_, err := f.Client.Create(f.Context(time.Minute), never, sdk.WithID("never-1"))
	hasError(t, "never, image absent", err, protocol.DeadlineExceeded, protocol.ReasonQueueTimeout)
	if n := h.door.Passed("/v2/moving/"); n != 0 {
		t.Errorf("never, image absent: the registry was asked %d times", n)
	}
	digestOf := func(id, pull string) string {
		s, err := f.Client.Create(f.Context(time.Minute), imageSpec(f, ref, pull), sdk.WithID(id))
		if err != nil {
			t.Fatal(err)
		}
		return s.Info().Digest
	}
	if got := digestOf("missing-1", protocol.PullMissing); got != one {
		t.Errorf("missing, image absent: %s, want %s", got, one)
	}
	_, two := h.push("moving:1", 1000)
	if got := digestOf("missing-2", protocol.PullMissing); got != one {
		t.Errorf("missing, image present: %s, want the old %s", got, one)
	}
	if got := digestOf("never-2", protocol.PullNever); got != one {
		t.Errorf("never, image present: %s, want the old %s", got, one)
	}
	if got := digestOf("always", protocol.PullAlways); got != two {
		t.Errorf("always: %s, want the new %s", got, two)
	}
	if got := digestOf("never-3", protocol.PullNever); got != two {
		t.Errorf("never, after the pull: %s, want the new %s", got, two)
	}
}

func aForeignImageKeepsItsName(t *testing.T, f *fleet.Fleet, h *warehouse) {
	ref, one := h.push("theirs:1", 1000)
	docker(t, h.engine.Host, "pull", "-q", ref)
	_, two := h.push("theirs:1", 1000)
	for i, c := range []struct{ pull, want string }{{protocol.PullMissing, one}, {protocol.PullAlways, two},
		{protocol.PullAlways, two}, {protocol.PullMissing, one}} {
		s, err := f.Client.Create(f.Context(time.Minute), imageSpec(f, ref, c.pull),
			sdk.WithID(fmt.Sprintf("theirs-%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Info().Digest; got != c.want {
			t.Errorf("%s: it has the digest %s, want %s", c.pull, got, c.want)
		}
	}
	if got := docker(t, h.engine.Host, "image", "inspect", "--format", "{{.RepoDigests}}",
		ref); !strings.Contains(got, one) || strings.Contains(got, two) {
		t.Errorf("on the host the name refers to %s, want %s", got, one)
	}
}

func aMissingImageAndAnUnreachableRegistryDiffer(t *testing.T, f *fleet.Fleet, h *warehouse) {
	ctx := f.Context(time.Minute)
	_, err := f.Client.Create(ctx, imageSpec(f, h.door.Host+"/absent:1", ""), sdk.WithID("absent"))
	hasError(t, "no such repository", err, protocol.NotFound, protocol.ReasonImageNotFound)
	_, err = f.Client.Create(ctx, imageSpec(f, h.door.Host+"/shared:absent", ""), sdk.WithID("no-tag"))
	hasError(t, "no such tag", err, protocol.NotFound, protocol.ReasonImageNotFound)
	_, err = f.Client.Create(ctx, imageSpec(f, "127.0.0.1:1/absent:1", ""), sdk.WithID("unreachable"))
	hasError(t, "no registry", err, protocol.Unavailable, protocol.ReasonRegistryUnreachable)
	if got := pulls(f, "unreachable"); len(got) == 0 {
		t.Error("the history does not show the attempts to reach the registry")
	}
}

func anImageNameReachesNoServiceOfTheHost(t *testing.T, f *fleet.Fleet, h *warehouse) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	inside := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "secret-of-the-host") // fails if the client is gone
	}), ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			asked.Add(1)
		}
	}}
	go func() { _ = inside.Serve(l) }() // returns when the server is closed
	defer inside.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for i, host := range []string{"127.0.0.1", "localhost"} {
		for _, pull := range []string{protocol.PullMissing, protocol.PullAlways} {
			_, err := f.Client.Create(f.Context(time.Minute), imageSpec(f, host+":"+port+"/x", pull),
				sdk.WithID(fmt.Sprintf("inside-%d-%s", i, pull)))
			hasError(t, host+", pull "+pull, err, protocol.PermissionDenied, protocol.ReasonPolicyDenied)
			if e := protocol.AsError(err); e != nil &&
				(e.Field != "spec.image" || strings.Contains(e.Message, "secret")) {
				t.Errorf("%s: the error names the field %q: %v", host, e.Field, e)
			}
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the service had %d connections", n)
	}
	// Now another server answers at the address of a registry that the operator trusts.
	h.door.Fault(func(q *http.Request) registry.Fault {
		if strings.Contains(q.URL.Path, "/html/manifests/") {
			return registry.Fault{Status: 400, Body: "<html>secret-of-the-host</html>"}
		}
		return registry.Fault{}
	})
	defer h.door.Fault(nil)
	_, err = f.Client.Create(f.Context(time.Minute), imageSpec(f, h.door.Host+"/html:1", ""), sdk.WithID("html"))
	hasError(t, "a server that is not a registry", err, protocol.Unavailable, protocol.ReasonImagePullFailed)
	if err != nil && strings.Contains(err.Error(), "secret") {
		t.Errorf("the body is in the error: %v", err)
	}
}

func aPullSurvivesAShortOutage(t *testing.T, f *fleet.Fleet, h *warehouse) {
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
	if _, err := f.Client.Create(f.Context(time.Minute), imageSpec(f, ref, ""), sdk.WithID("again")); err != nil {
		t.Errorf("got %v", err)
	}
}

func aStalledPullFails(t *testing.T, f *fleet.Fleet, h *warehouse) {
	ref, _ := h.push("stalling:1", 4*mebibyte)
	ctx := f.Context(time.Minute)
	h.door.Fault(registry.Layers(registry.Fault{StallAt: mebibyte}))
	defer h.door.Fault(nil)
	started := time.Now()
	_, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID("stalling"))
	hasError(t, "stalling", err, protocol.Unavailable, protocol.ReasonImagePullStalled)
	if took := time.Since(started); took < pullStall || took > 4*pullStall {
		t.Errorf("the pull took %s", took)
	}
	h.door.Fault(nil)
	if _, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID("moving-again")); err != nil {
		t.Errorf("after that: %v", err)
	}
}

func aPullThatOnlyReportsRetriesHasStalled(t *testing.T, f *fleet.Fleet, h *warehouse) {
	ref, _ := h.push("refused:1", mebibyte)
	ctx := f.Context(time.Minute)
	h.door.Fault(registry.Layers(registry.Fault{Status: http.StatusInternalServerError}))
	defer h.door.Fault(nil)
	started := time.Now()
	_, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID("refused"))
	hasError(t, "refused layers", err, protocol.Unavailable, protocol.ReasonImagePullStalled)
	if took := time.Since(started); took < pullStall || took > 4*pullStall {
		t.Errorf("the pull took %s", took)
	}
}

func aDeleteEndsAPullThatNobodyElseNeeds(t *testing.T, f *fleet.Fleet, h *warehouse) {
	ref, _ := h.push("deleted:1", 20*mebibyte)
	ctx := f.Context(time.Minute)
	h.door.Fault(registry.Layers(registry.Fault{PerSecond: mebibyte / 4}))
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
		if took := time.Since(started); err != nil || took > 15*time.Second { // the pull would take 80 s
			t.Errorf("delete %s: %v after %s", id, err, took)
		}
	}
	deleteWithin("deleted-1")
	time.Sleep(time.Second) // the pull must continue in this time: the other sandbox still needs the image
	if n := h.door.GivenUp(); n != gone {
		t.Error("the pull ended, although a sandbox waits for the image")
	}
	deleteWithin("deleted-2")
	f.Eventually(5*time.Second, "the engine aborts the download", func() error {
		if h.door.GivenUp() == gone {
			return errors.New("the download continues")
		}
		return nil
	})
}

// TestQ14_AlwaysAsksTheRegistryOncePerCreate kills a worker after it created the container. The restarted worker does
// not pull again, and the sandbox keeps the image from which it was created.
func TestQ14_AlwaysAsksTheRegistryOncePerCreate(t *testing.T) {
	t.Parallel()
	h := newWarehouse(t, false)
	ref, digest := h.push("always:1", 1000)
	f := fleet.Start(t, fleet.Options{Workers: -1, LockTTL: 2 * time.Second})
	ctx := f.Context(60 * time.Second)
	w := f.Worker("w1", fleet.Role{Engine: h.engine.Host, CrashAt: "after-container-create",
		Images: worker.Images{Registries: []string{h.door.Host}}})
	s, err := f.Client.Create(ctx, imageSpec(f, ref, protocol.PullAlways), sdk.WithID("always"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	w.AwaitKilled(30 * time.Second)
	asked := h.door.Passed("/v2/always/manifests/")
	h.push("always:1", 1000) // the tag now names another image
	f.Worker("w1", fleet.Role{Engine: h.engine.Host, Images: worker.Images{Registries: []string{h.door.Host}}})
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if n := h.door.Passed("/v2/always/manifests/"); n != asked || asked == 0 {
		t.Errorf("the registry was asked %d times before the crash, and %d times after it", asked, n-asked)
	}
	if got := s.Info().Digest; got != digest {
		t.Errorf("the digest is %s, but the sandbox was created from %s", got, digest)
	}
	f.Judge()
}
