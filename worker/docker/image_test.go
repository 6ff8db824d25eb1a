package docker_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

var errPullFailed = &protocol.Error{Code: protocol.Unavailable, Reason: protocol.ReasonImagePullFailed}

// unreachable names an image in a registry that refuses the connection at once.
const unreachable = "127.0.0.1:1/boxfleet/absent:none"

func TestAnImageThatIsThereIsReadWithoutAPull(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *docker.Config) { c.Fence = func() error { return errors.New("lost") } })
	img, err := b.Image(t.Context(), dockertest.Image)
	check(t, err)
	if !strings.HasPrefix(img.ID, "sha256:") || img.OS != "linux" || img.Size == 0 {
		t.Errorf("got %+v", img)
	}
}

func TestAPullThatFailsSaysWhetherItWasTheImage(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	start := time.Now()
	if _, err := b.Image(ctx, unreachable); !errors.Is(err, errPullFailed) {
		t.Errorf("unreachable registry: %v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("an unreachable registry took %s", took)
	}
	if _, err := b.Image(ctx, "NOT AN IMAGE"); protocol.CodeOf(err) != protocol.InvalidArgument {
		t.Errorf("bad reference: %v", err)
	}
	for message, want := range map[string]error{
		"pull access denied for x, repository does not exist or may require 'docker login'": docker.ErrImageNotFound,
		"manifest for x:none not found: manifest unknown: manifest unknown":                 docker.ErrImageNotFound,
		"toomanyrequests: You have reached your pull rate limit":                            errPullFailed,
		"Get https://registry.invalid/v2/: dial tcp: lookup registry.invalid: no such host": errPullFailed,
		"Get https://registry.invalid/v2/: net/http: request canceled (Client.Timeout)":     errPullFailed,
	} {
		for _, status := range []int{http.StatusNotFound, http.StatusInternalServerError} {
			b.proxy.Inject(func(r *http.Request) dockertest.Fault {
				if strings.HasSuffix(r.URL.Path, "/images/create") {
					return dockertest.Fault{Status: status, Message: message}
				}
				return dockertest.Fault{}
			})
			if _, err := b.Image(ctx, unreachable); !errors.Is(err, want) || docker.IsNotFound(err) {
				t.Errorf("%d %s: got %v", status, message, err)
			}
		}
	}
}

func TestAPullThatStandsStillEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *docker.Config) { c.StallTimeout = 100 * time.Millisecond })
	b.proxy.Inject(onPull(dockertest.Fault{Hang: true}))
	if _, err := b.Image(t.Context(), unreachable); !errors.Is(err, docker.ErrEngineUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestAReferenceIsPulledOnceAtATime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const callers = 8
	b.proxy.Inject(onPull(dockertest.Fault{Hang: true}))
	leading, abandon := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := b.Image(leading, unreachable); protocol.CodeOf(err) != protocol.Cancelled {
			t.Errorf("the one who gave up: %v", err)
		}
	})
	eventually(t, "the first pull has begun", func() bool { return len(b.proxy.Mutations()) == 1 })
	for range callers {
		wg.Go(func() {
			if _, err := b.Image(t.Context(), unreachable); !errors.Is(err, errPullFailed) {
				t.Errorf("a waiting one: %v", err)
			}
		})
	}
	eventually(t, "all have looked for the image", func() bool { return len(b.proxy.Requests()) >= callers+2 })
	if n := len(b.proxy.Mutations()); n != 1 {
		t.Errorf("%d pulls at once", n)
	}
	// The first one gives up; the others must neither fail with it nor all pull.
	b.proxy.Inject(onPull(dockertest.Fault{Delay: 200 * time.Millisecond, Status: http.StatusInternalServerError}))
	abandon()
	wg.Wait()
	if n := len(b.proxy.Mutations()); n != 2 {
		t.Errorf("%d pulls in all, want 2", n)
	}
}

func onPull(fault dockertest.Fault) func(*http.Request) dockertest.Fault {
	return func(r *http.Request) dockertest.Fault {
		if strings.HasSuffix(r.URL.Path, "/images/create") {
			return fault
		}
		return dockertest.Fault{}
	}
}
