package docker_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

var (
	errPullFailed  = &protocol.Error{Code: protocol.Unavailable, Reason: protocol.ReasonImagePullFailed}
	errUnreachable = &protocol.Error{Code: protocol.Unavailable, Reason: protocol.ReasonRegistryUnreachable}
	errStalled     = &protocol.Error{Code: protocol.Unavailable, Reason: protocol.ReasonImagePullStalled}
	errDenied      = &protocol.Error{Code: protocol.PermissionDenied, Reason: protocol.ReasonImageDenied}
)

// unreachable names an image in a registry that refuses the connection at once.
const unreachable = "127.0.0.1:1/boxfleet/absent:none"

func TestAnExistingImageIsDescribedWithoutAPull(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *docker.Config) { c.Fence = func() error { return errors.New("lost") } })
	img, err := b.FindImage(t.Context(), dockertest.Image)
	check(t, err)
	if !strings.HasPrefix(img.ID, "sha256:") || img.OS != "linux" || img.Size == 0 {
		t.Errorf("the image is described as %+v", img)
	}
}

func TestAFailedPullSaysWhetherTheImageWasTheCause(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, func(c *docker.Config) { c.RetryPause = time.Millisecond }), t.Context()
	start := time.Now()
	if _, err := b.PullImage(ctx, unreachable, nil); !errors.Is(err, errUnreachable) {
		t.Errorf("pulling from an unreachable registry: got %v, want %v", err, errUnreachable)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the pull from an unreachable registry took %s, want at most 10 s", took)
	}
	if n := len(b.proxy.Mutations()); n != 3 {
		t.Errorf("the unreachable registry was tried %d times, want 3", n)
	}
	if _, err := b.PullImage(ctx, "NOT AN IMAGE", nil); protocol.CodeOf(err) != protocol.InvalidArgument {
		t.Errorf("pulling an invalid reference: got %v, want invalid_argument", err)
	}
	for message, want := range map[string]error{
		"pull access denied for x, repository does not exist or may require 'docker login'": docker.ErrImageNotFound,
		"manifest for x:none not found: manifest unknown: manifest unknown":                 docker.ErrImageNotFound,
		"toomanyrequests: You have reached your pull rate limit":                            errPullFailed,
		"Get https://registry.invalid/v2/: dial tcp: lookup registry.invalid: no such host": errUnreachable,
		"Get https://registry.invalid/v2/: net/http: request canceled (Client.Timeout)":     errUnreachable,
		"received unexpected HTTP status: 503 Service Unavailable":                          errUnreachable,
		"Head https://registry.invalid/v2/x/manifests/1: no basic auth credentials":         errDenied,
		"unauthorized: authentication required":                                             errDenied,
		"Get https://registry.invalid/v2/: x509: certificate signed by unknown authority":   errPullFailed,
	} {
		for _, status := range []int{http.StatusNotFound, http.StatusInternalServerError} {
			b.proxy.Inject(func(r *http.Request) dockertest.Fault {
				if strings.HasSuffix(r.URL.Path, "/images/create") {
					return dockertest.Fault{Status: status, Message: message}
				}
				return dockertest.Fault{}
			})
			if _, err := b.PullImage(ctx, unreachable, nil); !errors.Is(err, want) || docker.IsNotFound(err) {
				t.Errorf("status %d with message %q: got %v, want %v", status, message, err, want)
			}
		}
	}
}

// Registries give the same answer for a missing image, and for an image that the client is not allowed to pull.
func TestCredentialsDistinguishADeniedPullFromAMissingImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths": {"127.0.0.1:1": {"auth": "dTpw"}}}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	for config, want := range map[string]error{dir: errDenied, t.TempDir(): docker.ErrImageNotFound} {
		b := newBench(t, func(c *docker.Config) { c.DockerConfig = config })
		b.proxy.Inject(onPull(dockertest.Fault{Status: http.StatusNotFound,
			Message: "pull access denied for x, repository does not exist or may require 'docker login'"}))
		if _, err := b.PullImage(t.Context(), unreachable, nil); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

func TestAStalledPullEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *docker.Config) { c.PullStall = 100 * time.Millisecond })
	b.proxy.Inject(onPull(dockertest.Fault{Hang: true}))
	if _, err := b.PullImage(t.Context(), unreachable, nil); !errors.Is(err, errStalled) {
		t.Errorf("got %v, want %v", err, errStalled)
	}
}

func TestConcurrentPullsOfAnImageShareOnePull(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const callers = 8
	release := make(chan struct{})
	b.proxy.Inject(func(r *http.Request) dockertest.Fault {
		if strings.HasSuffix(r.URL.Path, "/images/create") {
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return dockertest.Fault{Status: http.StatusInternalServerError, Message: "it broke"}
		}
		return dockertest.Fault{}
	})
	leading, abandon := context.WithCancel(t.Context())
	var wg, first sync.WaitGroup
	first.Go(func() {
		if _, err := b.PullImage(leading, unreachable, nil); protocol.CodeOf(err) != protocol.Cancelled {
			t.Errorf("the caller that gave up got %v, want cancelled", err)
		}
	})
	eventually.Holds(t, within, "the first pull has begun", func() bool { return len(b.proxy.Mutations()) == 1 })
	var joined atomic.Int64
	for range callers {
		wg.Go(func() {
			_, err := b.PullImage(t.Context(), unreachable, func(protocol.PullProgress) { joined.Add(1) })
			if !errors.Is(err, errPullFailed) {
				t.Errorf("a waiting caller got %v, want %v", err, errPullFailed)
			}
		})
	}
	eventually.Holds(t, within, "all callers wait for the pull", func() bool { return joined.Load() == callers })
	// The first caller gives up. The others must keep waiting for the same pull.
	abandon()
	first.Wait()
	close(release)
	wg.Wait()
	if n := len(b.proxy.Mutations()); n != 1 {
		t.Errorf("the engine was asked for %d pulls, want 1", n)
	}
}

func TestAPullWithoutCallersIsCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ended := make(chan struct{})
	b.proxy.Inject(func(r *http.Request) dockertest.Fault {
		if strings.HasSuffix(r.URL.Path, "/images/create") {
			<-r.Context().Done()
			close(ended)
			return dockertest.Fault{Drop: true}
		}
		return dockertest.Fault{}
	})
	ctx, abandon := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := b.PullImage(ctx, unreachable, nil); protocol.CodeOf(err) != protocol.Cancelled {
				t.Errorf("a caller that gave up got %v, want cancelled", err)
			}
		})
	}
	eventually.Holds(t, within, "the pull has begun", func() bool { return len(b.proxy.Mutations()) == 1 })
	abandon()
	wg.Wait()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("the request to the engine was not cancelled within 5 s after the last caller gave up")
	}
}

func TestAPullOnAHungEngineIsNotReportedAsStalled(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *docker.Config) { c.PullStall, c.CallTimeout = 100*time.Millisecond, 6*time.Second })
	b.proxy.Inject(func(*http.Request) dockertest.Fault { return dockertest.Fault{Hang: true} })
	if _, err := b.PullImage(t.Context(), unreachable, nil); !errors.Is(err, docker.ErrEngineUnavailable) {
		t.Errorf("got %v, want %v", err, docker.ErrEngineUnavailable)
	}
}

func TestACallerAfterAnAbandonedPullStartsANewSharedPull(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 20 {
		b.proxy.Reset()
		release := make(chan struct{})
		b.proxy.Inject(func(r *http.Request) dockertest.Fault {
			if !strings.HasSuffix(r.URL.Path, "/images/create") {
				return dockertest.Fault{}
			}
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return dockertest.Fault{Status: http.StatusInternalServerError, Message: "it broke"}
		})
		first, abandonFirst := context.WithCancel(t.Context())
		ended, joined := make(chan error, 3), make(chan bool, 3)
		wait := func(ctx context.Context) {
			_, err := b.PullImage(ctx, unreachable, func(protocol.PullProgress) { joined <- true })
			ended <- err
		}
		go func() {
			wait(first)
			wait(t.Context()) // at once, because the engine may not know yet that the first pull was abandoned
		}()
		eventually.Holds(t, within, "the first pull has begun", func() bool { return len(b.proxy.Mutations()) == 1 })
		abandonFirst()
		if err := <-ended; protocol.CodeOf(err) != protocol.Cancelled {
			t.Errorf("round %d: the caller that gave up got %v, want cancelled", i, err)
		}
		eventually.Holds(t, within, "the second pull has begun", func() bool { return len(b.proxy.Mutations()) == 2 })
		go wait(t.Context())
		for range 3 {
			<-joined
		}
		close(release)
		for range 2 { // both callers share the second pull; a third pull would be counted below
			if err := <-ended; !errors.Is(err, errPullFailed) {
				t.Errorf("round %d: a caller of the second pull got %v, want %v", i, err, errPullFailed)
			}
		}
		if n := len(b.proxy.Mutations()); n != 2 {
			t.Errorf("round %d: the engine was asked for %d pulls, want the abandoned pull and one more", i, n)
		}
	}
}

func TestAnEndedPullIsNotShared(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.proxy.Inject(onPull(dockertest.Fault{Status: http.StatusInternalServerError, Message: "it broke"}))
	reporting, slow := make(chan bool), make(chan bool)
	var first sync.WaitGroup
	first.Go(func() {
		_, err := b.PullImage(t.Context(), unreachable, func(protocol.PullProgress) {
			close(reporting)
			<-slow // report blocks until after the end of the pull
		})
		if !errors.Is(err, errPullFailed) {
			t.Errorf("the caller with the slow report got %v, want %v", err, errPullFailed)
		}
	})
	<-reporting
	eventually.Holds(t, within, "a later caller starts a pull of its own", func() bool {
		_, err := b.PullImage(t.Context(), unreachable, nil)
		if !errors.Is(err, errPullFailed) {
			t.Errorf("a later caller got %v, want %v", err, errPullFailed)
		}
		return len(b.proxy.Mutations()) > 1
	})
	close(slow)
	first.Wait()
}

func onPull(fault dockertest.Fault) func(*http.Request) dockertest.Fault {
	return func(r *http.Request) dockertest.Fault {
		if strings.HasSuffix(r.URL.Path, "/images/create") {
			return fault
		}
		return dockertest.Fault{}
	}
}

func TestImagesAreListedByTheirFullNames(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	names, err := b.ImageNames(t.Context())
	check(t, err)
	img, err := b.FindImage(t.Context(), dockertest.Image)
	check(t, err)
	for _, want := range []string{"docker.io/" + dockertest.Image, "docker.io/library/" + img.ID} {
		if !slices.Contains(names, want) {
			t.Errorf("the list lacks %s: %v", want, names)
		}
	}
	isID := func(name string) bool { return strings.HasPrefix(name, "docker.io/library/sha256:") }
	if i := slices.IndexFunc(names, isID); slices.ContainsFunc(names[i:], func(name string) bool { return !isID(name) }) {
		t.Errorf("the image ids are not at the end of the list: %v", names)
	}
}

func TestFollowImagesEndsWithItsContextOrItsEngine(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- b.FollowImages(ctx, func() {}) }()
	cancel()
	if err := <-ended; protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("after its context was cancelled: got %v, want cancelled", err)
	}
	go func() { ended <- b.FollowImages(t.Context(), func() {}) }()
	eventually.Holds(t, within, "the proxy has the request for events", func() bool {
		for _, r := range b.proxy.Requests() {
			if strings.HasSuffix(r.Path, "/events") {
				return true
			}
		}
		return false
	})
	check(t, b.proxy.Close())
	if err := <-ended; !errors.Is(err, docker.ErrEngineUnavailable) {
		t.Errorf("after the connection was closed: got %v, want %v", err, docker.ErrEngineUnavailable)
	}
}
