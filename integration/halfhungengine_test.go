package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// TestAnEngineThatAnswersOnlyPingsIsUnhealthy makes the engine answer no request that concerns networks, as Engine
// 20.10 does after a deadlock of its networks. Pings are answered all the time.
func TestAnEngineThatAnswersOnlyPingsIsUnhealthy(t *testing.T) {
	t.Parallel()
	proxy, address := dockertest.StartProxy(t, dockertest.Socket(t))
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Engine: address, Reconcile: time.Second})
	ctx := f.Context(3 * time.Minute)
	before := f.Create("before")
	var pings atomic.Int32
	proxy.Inject(func(r *http.Request) dockertest.Fault {
		if strings.HasSuffix(r.URL.Path, "/_ping") {
			pings.Add(1)
		}
		return dockertest.Fault{Hang: strings.Contains(r.URL.Path, "/networks")}
	})

	f.Eventually(time.Minute, "the host is listed as unhealthy", unhealthy(f))
	since := pings.Load()
	f.Eventually(2*time.Minute, "the engine answers two more pings", func() error {
		hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
		if err != nil || len(hosts) != 1 {
			return fmt.Errorf("%d hosts, %v", len(hosts), err)
		}
		if h := hosts[0]; h.State != protocol.HostUnhealthy || !strings.Contains(h.Problem, "systemctl restart docker") {
			t.Fatalf("after %d pings the host is %s, problem %q", pings.Load()-since, h.State, h.Problem)
		}
		if n := pings.Load() - since; n < 2 {
			return fmt.Errorf("it answered %d", n)
		}
		return nil
	})
	if _, err := before.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}}); err != nil {
		t.Errorf("an exec while the engine hangs: %v", err)
	}
	waiting, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("waiting"), sdk.WithWait(false))
	check(t, err)
	explained, err := waiting.Explain(ctx)
	if err != nil || explained.Sandbox.Assigned || explained.Waiting != "no host takes it now" {
		t.Errorf("a create while the engine hangs: %+v, %v", explained, err)
	}

	proxy.Inject(nil)
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	check(t, waiting.WaitReady(bounded))
	f.Judge()
}
