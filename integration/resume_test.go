package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// objectOf finds the object of this kind on the engine by the end of its name.
func objectOf(f *fleet.Fleet, host, kind, end string) string {
	f.TB.Helper()
	for _, o := range f.Objects(host) {
		if name, ok := strings.CutPrefix(o, kind+" "); ok && strings.HasSuffix(name, end) {
			return name
		}
	}
	f.TB.Fatalf("there is no %s whose name ends with %s", kind, end)
	return ""
}

// TestAResumeWithAMissingPartFailsAndRepairsNothing removes a part of each stopped sandbox. Each resume names the
// missing part, does not recreate it, and keeps the other parts for inspection.
func TestAResumeWithAMissingPartFailsAndRepairsNothing(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	host := engines.Default(t).Host
	mounted := t.TempDir()
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{mounted}})
	ctx := f.Context(2 * time.Minute)
	sleeps := protocol.Service{Image: fleet.Image, Command: []string{"sleep", "1000"}, Memory: 64 << 20}
	mount := filepath.Join(mounted, "source")
	mkdir(t, mount)
	for id, part := range map[string]struct {
		change func(*protocol.SandboxSpec)
		remove func()
		reason string
		says   string
	}{
		"container": {remove: func() { docker(t, host, "rm", objectOf(f, host, "container", ".container")) },
			reason: protocol.ReasonContainerMissing, says: "container"},
		"network": {remove: func() { docker(t, host, "network", "rm", objectOf(f, host, "network", ".network")) },
			reason: protocol.ReasonContainerMissing, says: "network"},
		"directory": {remove: func() {
			for _, d := range f.Directories(w) {
				if strings.Contains(d, "directory") {
					if err := os.RemoveAll(d); err != nil {
						t.Error(err)
					}
				}
			}
		}, reason: protocol.ReasonContainerMissing, says: "directory"},
		"service": {func(s *protocol.SandboxSpec) { s.RequiredServices = protocol.Services{"db": sleeps} },
			func() {
				docker(t, host, "rm",
					objectOf(f, host, "container", ".service.db"))
			}, protocol.ReasonContainerMissing, "db"},
		"mount": {func(s *protocol.SandboxSpec) { s.Mounts = []protocol.Mount{{Source: mount, Target: "/mnt"}} },
			func() { os.Remove(mount) }, "", "spec.mounts[0]"},
	} {
		f.Run(t, id, func(t *testing.T) {
			spec := f.Spec()
			if part.change != nil {
				part.change(&spec)
			}
			s, err := f.Client.Create(ctx, spec, sdk.WithID(id))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			before := len(f.Objects(host))
			part.remove()
			objects := slices.Sorted(slices.Values(f.Objects(host)))
			if id != "mount" && id != "directory" && len(objects) != before-1 {
				t.Fatalf("there were %d objects, and now %q", before, objects)
			}
			err = s.Resume(ctx)
			e := protocol.AsError(err)
			if e == nil || e.Reason != part.reason && part.reason != "" || !strings.Contains(e.Error(), part.says) {
				t.Errorf("the resume failed with %v", err)
			}
			if err := s.Refresh(ctx); err != nil || s.Info().State != protocol.StateFailed {
				t.Errorf("the sandbox is %s (%v)", s.Info().State, err)
			}
			if after := slices.Sorted(slices.Values(f.Objects(host))); !slices.Equal(after, objects) {
				t.Errorf("the objects were %q and are %q", objects, after)
			}
			if _, err := s.Exec(ctx, script("true")); err == nil {
				t.Error("an exec runs in the failed sandbox")
			}
			if err := s.Delete(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	// If a part of an optional service is missing, the service is reported as failed, and the sandbox becomes ready.
	spec := f.Spec()
	spec.OptionalServices = protocol.Services{"cache": sleeps}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("optional"))
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(10*time.Second, "the service is ready",
		func() error { return serviceIs(f, "optional", "cache", protocol.ServiceStateReady) })
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	docker(t, host, "rm", objectOf(f, host, "container", ".optional.cache"))
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	f.Eventually(10*time.Second, "the service is reported as failed",
		func() error { return serviceIs(f, "optional", "cache", protocol.ServiceStateFailed) })
	if status := f.History("optional").State.Sandbox.Services["cache"]; status.Reason != protocol.ReasonContainerMissing {
		t.Errorf("the service is %+v", status)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}
