package integration

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// TestPlacementConsidersTheImagesOfHosts uses two hosts. One of them has an image that is in no registry.
func TestPlacementConsidersTheImagesOfHosts(t *testing.T) {
	t.Parallel()
	empty, stocked := engines.Start(t, "empty"), engines.Start(t, "stocked")
	engines.LoadImage(t, stocked, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("a-empty", fleet.Role{Engine: empty.Host})
	f.Worker("b-stocked", fleet.Role{Engine: stocked.Host})
	ctx := f.Context(time.Minute)
	start := func(id, ref, pull string) *sdk.Sandbox {
		t.Helper()
		spec := imageSpec(f, ref, pull)
		spec.CPU = 0.01 // so little that the sandbox hardly changes how full its host is
		s, err := f.Client.Create(ctx, spec, sdk.WithID(id), sdk.WithWait(false))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	waitsFor := func(s *sdk.Sandbox, ref string) {
		t.Helper()
		f.Eventually(10*time.Second, "the sandbox waits with a reason", func() error {
			e, err := s.Explain(ctx)
			if err != nil {
				return err
			}
			if len(e.Hosts) != 2 {
				return fmt.Errorf("%+v", e)
			}
			for _, h := range e.Hosts {
				if h.Reason != "spec.image: the host has no image "+ref+", and spec.pull is never" {
					return fmt.Errorf("%+v", h)
				}
			}
			return nil
		})
	}

	f.Run(t, "never: the sandbox waits until a host gets the image", func(t *testing.T) {
		s := start("waiting", "later:1", protocol.PullNever)
		waitsFor(s, "later:1")
		docker(t, stocked.Host, "tag", fleet.Image, "later:1")
		if err := s.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		if s.Info().Worker != "b-stocked" {
			t.Errorf("the sandbox is on %s", s.Info().Worker)
		}
		docker(t, stocked.Host, "rmi", "later:1")
		f.Eventually(10*time.Second, "the host no longer reports the image", func() error {
			hosts, err := sdk.ReadAll(f.Operator.Images().OnHosts(ctx))
			if err == nil && strings.Contains(fmt.Sprint(hosts[0].Names, hosts[1].Names), "later") {
				err = errors.New("it reports the image")
			}
			return err
		})
		waitsFor(start("waiting-again", "later:1", protocol.PullNever), "later:1")
	})

	f.Run(t, "never: an emptier host without the image is skipped; missing: only if it is not much emptier",
		func(t *testing.T) {
			for i, pull := range []string{protocol.PullNever, protocol.PullNever, protocol.PullMissing,
				protocol.PullNever} {
				s := start(fmt.Sprint("placed-", i), fleet.Image, pull)
				if err := s.WaitReady(ctx); err != nil || s.Info().Worker != "b-stocked" {
					t.Errorf("%s: on %q, %v", pull, s.Info().Worker, err)
				}
			}
		})

	f.Run(t, "never: the timeout names the unmet requirements of each host", func(t *testing.T) {
		spec := imageSpec(f, "absent:1", protocol.PullNever)
		spec.QueueTimeout = protocol.Duration(time.Second)
		_, err := f.Client.Create(ctx, spec, sdk.WithID("absent"))
		hasError(t, "absent", err, protocol.DeadlineExceeded, protocol.ReasonQueueTimeout)
		for _, worker := range []string{"a-empty", "b-stocked"} {
			if !strings.Contains(err.Error(), worker+": spec.image: the host has no image absent:1") {
				t.Errorf("%s is missing in %v", worker, err)
			}
		}
	})
	f.Judge()
}

// The worker must find the image even if the Engine's image event is lost.
func TestAnImageIsFoundWithoutAnEngineEvent(t *testing.T) {
	t.Parallel()
	main := engines.Default(t)
	proxy, host := dockertest.StartProxy(t, main.Socket)
	proxy.Inject(deafToImages)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Engine: host, Images: worker.Images{Sweep: 300 * time.Millisecond}})
	ref := "boxfleet/unheard:" + strings.ToLower(rand.Text()[:10])
	s, err := f.Client.Create(f.Context(time.Minute), imageSpec(f, ref, protocol.PullNever), sdk.WithID("unheard"),
		sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // let the sandbox wait for a while before the image appears
	docker(t, main.Host, "tag", fleet.Image, ref)
	t.Cleanup(func() { docker(t, main.Host, "rmi", ref) })
	if err := s.WaitReady(f.Context(20 * time.Second)); err != nil {
		t.Error(err)
	}
}

// Placement relies on the host's last report of its images. The image is removed after that report.
func TestNeverDoesNotPullAnImageRemovedAfterPlacement(t *testing.T) {
	t.Parallel()
	main := engines.Default(t)
	proxy, host := dockertest.StartProxy(t, main.Socket)
	proxy.Inject(deafToImages)
	ref := "boxfleet/unheard:" + strings.ToLower(rand.Text()[:10])
	docker(t, main.Host, "tag", fleet.Image, ref)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Engine: host, Images: worker.Images{Sweep: time.Hour}})
	ctx := f.Context(time.Minute)
	f.Eventually(10*time.Second, "the host reports the image", func() error {
		hosts, err := sdk.ReadAll(f.Operator.Images().OnHosts(ctx))
		if err == nil && (len(hosts) != 1 || !slices.Contains(hosts[0].Names, "docker.io/"+ref)) {
			err = fmt.Errorf("%+v", hosts)
		}
		return err
	})
	docker(t, main.Host, "rmi", ref)
	_, err := f.Client.Create(ctx, imageSpec(f, ref, protocol.PullNever), sdk.WithID("gone"))
	hasError(t, "never, and gone", err, protocol.NotFound, protocol.ReasonImageNotFound)
	for _, r := range proxy.Mutations() {
		if strings.HasSuffix(r.Path, "/images/create") {
			t.Error("the image was pulled")
		}
	}
}

// deafToImages makes the proxy hide the engine's image events from the worker.
func deafToImages(q *http.Request) dockertest.Fault {
	return dockertest.Fault{Hang: strings.HasSuffix(q.URL.Path, "/events") && strings.Contains(q.URL.RawQuery, "image")}
}

// A sandbox that needs something that the operator does not allow is refused before a host is chosen for it.
func TestWhatAnOperatorDeniesIsRefusedBeforePlacement(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Deny: []string{"10.1.0.0/16"}})
	ctx := f.Context(time.Minute)
	f.Create("ordinary")
	hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
	if err != nil || len(hosts) != 1 {
		t.Fatal(hosts, err)
	}
	if h := hosts[0]; !slices.Equal(h.DenyNetworks, []string{"10.1.0.0/16"}) || h.PIDs < h.UsedPIDs ||
		h.UsedPIDs != protocol.DefaultPIDs {
		t.Errorf("the host reports %+v", h)
	}
	for id, network := range map[string]string{"denied": "10.1.2.0/24", "withheld": "192.168.1.0/24"} {
		spec := f.Spec()
		spec.Network = &protocol.Network{Mode: protocol.NetworkAllow, Allow: []string{network}}
		s, err := f.Client.Create(ctx, spec, sdk.WithID(id))
		if e := protocol.AsError(err); err == nil || e.Reason != protocol.ReasonPolicyDenied ||
			e.Field != "spec.network.allow[0]" {
			t.Fatalf("%s: got %v", id, err)
		}
		if s != nil && s.Info().Worker != "" {
			t.Errorf("worker %s took the sandbox", s.Info().Worker)
		}
	}
}
