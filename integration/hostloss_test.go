package integration

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestASandboxNeedNotWaitForALostHost kills the only worker. Of the two sandboxes on its host, one waits and is listed
// as unreachable. The other one fails after the host's lease has ended, and not before.
func TestASandboxNeedNotWaitForALostHost(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	f := fleet.Start(t, fleet.Options{LockTTL: ttl,
		Timing: coordinator.Timing{Suspect: time.Second, Seize: 500 * time.Millisecond}})
	ctx := f.Context(2 * time.Minute)
	locks := f.WatchLocks()
	waits := f.Create("waits")
	spec := f.Spec()
	spec.OnHostLoss = protocol.OnHostLossFail
	fails, err := f.Client.Create(ctx, spec, sdk.WithID("fails"))
	if err != nil {
		t.Fatal(err)
	}
	x, err := fails.Start(ctx, script("sleep 600"))
	if err != nil {
		t.Fatal(err)
	}
	f.Processes("worker")[0].Kill()
	_, err = x.Wait(ctx)
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonHostLost {
		t.Errorf("its exec: %v", err)
	}
	f.Eventually(ttl+10*time.Second, "the sandbox has failed", func() error {
		if err := fails.Refresh(ctx); err != nil || fails.Info().State != protocol.StateFailed {
			return protocol.Errorf(protocol.Internal, "", "%s, %v", fails.Info().State, err)
		}
		return nil
	})
	i := fails.Info()
	renewals := locks.Of("w1")
	after := i.StateChangedAt.Sub(renewals[len(renewals)-1].Time)
	t.Logf("the sandbox failed %s after the worker's last renewal, lease %s", after.Round(time.Millisecond), ttl)
	if i.Reason != protocol.ReasonHostLost || after < ttl {
		t.Errorf("failed with reason %s %s after the last renewal, before the lease ended", i.Reason, after)
	}
	if err := waits.Refresh(ctx); err != nil || waits.Info().State != protocol.StateReady || !waits.Info().Unreachable {
		t.Errorf("the waiting sandbox is %s, unreachable %v, %v", waits.Info().State, waits.Info().Unreachable, err)
	}
	f.Judge()
}

// TestAStopWaitsForTheGracePeriod stops two sandboxes: the exec of the first needs a while to end, and the exec of the
// second never ends.
func TestAStopWaitsForTheGracePeriod(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	run := func(id string, grace time.Duration, text string) (took time.Duration, r *sdk.Result) {
		t.Helper()
		spec := f.Spec()
		spec.Grace = protocol.Duration(grace)
		s, err := f.Client.Create(ctx, spec, sdk.WithID(id))
		if err != nil {
			t.Fatal(err)
		}
		x, err := s.Start(ctx, script(text))
		if err != nil {
			t.Fatal(err)
		}
		for range x.Output(ctx, sdk.WithFollow(true)) {
			break // now the shell has set its trap
		}
		began := time.Now()
		if err := s.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		took = time.Since(began)
		r, _ = x.Wait(ctx) // the error only says that the exec was cancelled
		return took, r
	}
	took, r := run("polite", 20*time.Second, "trap 'echo bye; exit 0' TERM; echo ready; while :; do usleep 50000; done")
	if took > 15*time.Second || string(r.Stdout) != "ready\nbye\n" {
		t.Errorf("the exec that ends on TERM ended after %s, %q", took, r.Stdout)
	}
	took, r = run("deaf", time.Second, "trap 'echo no' TERM; echo ready; while :; do usleep 50000; done")
	if took < time.Second || took > 15*time.Second || code(r) != "137" {
		t.Errorf("the exec that ignores TERM ended after %s, exit code %s", took, code(r))
	}
	f.Judge()
}

// TestAHostThatReturnsTooLateRemovesItsRemains kills the only worker in the middle of a create, and restarts it after
// the sandbox has failed.
func TestAHostThatReturnsTooLateRemovesItsRemains(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, LockTTL: 4 * time.Second,
		Timing: coordinator.Timing{Suspect: time.Second, Seize: 500 * time.Millisecond, Overdue: time.Second}})
	ctx := f.Context(2 * time.Minute)
	w := f.Worker("w1", fleet.Role{CrashAt: "after-container-create"})
	spec := f.Spec()
	spec.QueueTimeout, spec.CreateTimeout = protocol.Duration(10*time.Second), protocol.Duration(10*time.Second)
	_, err := f.Client.Create(ctx, spec, sdk.WithID("late"))
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonHostLost {
		t.Fatalf("got %v", err)
	}
	w.AwaitKilled(time.Second)
	if len(f.Objects("")) == 0 {
		t.Error("the killed worker had created nothing")
	}
	w = w.Restart()
	f.Eventually(10*time.Second, "nothing of the sandbox is left", func() error {
		if left := append(f.Objects(""), f.Directories(w)...); len(left) > 0 {
			return protocol.Errorf(protocol.Internal, "", "%q", left)
		}
		return nil
	})
	s := f.Client.Sandbox("late")
	if err := s.Refresh(ctx); err != nil || s.Info().State != protocol.StateFailed {
		t.Errorf("the sandbox is %s, %v", s.Info().State, err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Error(err)
	}
	f.Judge()
}
