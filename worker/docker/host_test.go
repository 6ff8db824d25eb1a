package docker_test

import (
	"sync"
	"testing"

	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestAnEngineHasOneHostIDPerDeployment(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	ids := make([]string, 16)
	var wg sync.WaitGroup
	for i := range ids {
		e := b.connect(t)
		wg.Go(func() {
			var err error
			if ids[i], err = e.HostID(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("concurrent callers got different ids: %q", ids)
		}
	}
	other := newBench(t)
	if id, err := other.HostID(ctx); err != nil || id == ids[0] {
		t.Errorf("another deployment on the same engine: got the id %q and error %v, want a different id", id, err)
	}
	if id, err := b.KeepHostID(ctx, "mine"); err != nil || id != ids[0] {
		t.Errorf("KeepHostID on an engine with an id: got %q and error %v, want the existing id", id, err)
	}
	check(t, b.RemoveHostID(ctx))
	if id, err := b.KeepHostID(ctx, "mine"); err != nil || id != "mine" {
		t.Errorf("KeepHostID on an engine without an id: got %q and error %v, want the given id", id, err)
	}
	check(t, b.RemoveHostID(ctx))
	if id, err := b.HostID(ctx); err != nil || id == ids[0] || id == "" {
		t.Errorf("HostID after the id was removed: got %q and error %v, want a new id", id, err)
	}
}

func TestInfoDescribesTheEngine(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	check(t, b.Ping(t.Context()))
	info, err := b.Info(t.Context())
	check(t, err)
	if info.Version == "" || info.APIVersion == "" || info.Runtime == "" || info.CPUs < 1 || info.Memory < 1<<20 ||
		info.Kernel == "" || info.CgroupVersion == "" || info.RootDir == "" || len(info.Runtimes) == 0 ||
		info.Seccomp == "" || info.Seccomp == "unconfined" || info.Runc == "" || info.Containerd == "" {
		t.Errorf("the engine's description is incomplete: %+v", info)
	}
}

func TestConnectRefusesAnIncompleteConfig(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]docker.Config{
		"no deployment":    {Fence: docker.Unfenced},
		"no fence":         {Deployment: "d"},
		"bad host":         {Deployment: "d", Fence: docker.Unfenced, Host: "nonsense"},
		"negative timeout": {Deployment: "d", Fence: docker.Unfenced, CallTimeout: -1},
	} {
		if _, err := docker.Connect(t.Context(), cfg); err == nil {
			t.Errorf("Connect accepted a config with the defect %q", name)
		}
	}
}
