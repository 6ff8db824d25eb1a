package integration

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// If a host's worker returns with another name and another state directory, the host is still the same. Its sandboxes
// keep running.
func TestP6_ARenamedWorkerAdoptsItsHostsSandboxes(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, LockTTL: 4 * time.Second})
	first := f.Worker("first", fleet.Role{})
	s, stopped := f.Create("runs"), f.Create("stopped")
	ctx := f.Context(time.Minute)
	if err := stopped.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c",
		"while [ ! -e /tmp/go ]; do sleep 0.05; done; echo went; exit 4"}})
	if err != nil {
		t.Fatal(err)
	}
	first.Kill()
	second := f.Worker("second", fleet.Role{})

	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"touch", "/tmp/go"}}); err != nil {
		t.Fatal(err)
	}
	result, err := x.Wait(ctx)
	if err != nil || result.ExitCode == nil || *result.ExitCode != 4 || string(result.Stdout) != "went\n" {
		t.Errorf("the exec that ran during the change: %+v, %v", result, err)
	}
	if err := stopped.Resume(ctx); err != nil {
		t.Errorf("resume under the new name: %v", err)
	}
	if err := s.Refresh(ctx); err != nil || s.Info().Unreachable || s.Info().State != protocol.StateReady {
		t.Errorf("%+v, %v", s.Info(), err)
	}
	hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
	if err != nil || len(hosts) != 1 || hosts[0].Worker != "second" || hosts[0].Sandboxes != 2 {
		t.Errorf("hosts %+v, %v", hosts, err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if left := append(f.Objects(""), append(f.Directories(first), f.Directories(second)...)...); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	f.Judge()
}
