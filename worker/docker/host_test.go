package docker_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
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

// The engine's answers pass through a proxy that replaces the API version that the engine announces.
func TestAnEngineOlderThan20_10IsRefused(t *testing.T) {
	t.Parallel()
	engine := dockertest.Socket(t)
	for announced, supported := range map[string]bool{"1.40": false, "1.41": true} {
		listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "engine.sock"))
		check(t, err)
		proxy := &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "engine"}) },
			Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", engine)
			}, DisableKeepAlives: true},
			ModifyResponse: func(r *http.Response) error {
				r.Header.Set("Api-Version", announced)
				return nil
			},
		}
		server := &http.Server{Handler: proxy}
		go func() { _ = server.Serve(listener) }() // ends with Close
		e, err := docker.Connect(t.Context(), docker.Config{
			Host: "unix://" + listener.Addr().String(), Deployment: "d", Fence: docker.Unfenced,
		})
		switch {
		case supported && err != nil:
			t.Errorf("an engine that announces %s is refused: %v", announced, err)
		case supported:
			e.Close()
		case protocol.CodeOf(err) != protocol.FailedPrecondition || !strings.Contains(err.Error(), "20.10 or newer"):
			t.Errorf("an engine that announces %s: %v", announced, err)
		}
		check(t, server.Close())
	}
}
