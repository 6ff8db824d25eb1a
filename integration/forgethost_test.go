package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestAForgottenHostRemovesItsRemainsWhenItReturns kills the worker of a host with sandboxes, and forgets the host. A
// pending delete and a pending stop then end. A sandbox with on_host_loss replace runs on another host, and so does its
// exec that had not started. When the first host returns, it removes its remains before it takes work. A drain of the
// other host then moves the sandbox to the first host.
func TestAForgottenHostRemovesItsRemainsWhenItReturns(t *testing.T) {
	t.Parallel()
	other := engines.Start(t, "spare")
	engines.LoadImage(t, other, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1, LockTTL: 4 * time.Second,
		Timing: coordinator.Timing{Suspect: time.Second, Seize: 500 * time.Millisecond}})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(3 * time.Minute)
	spec := f.Spec()
	spec.OnHostLoss = protocol.OnHostLossReplace
	moves, err := f.Client.Create(ctx, spec, sdk.WithID("moves"))
	if err != nil {
		t.Fatal(err)
	}
	deletes, stops, fails := f.Create("deletes"), f.Create("stops"), f.Create("fails")
	ran, err := moves.Start(ctx, script("echo up; sleep 600"))
	if err != nil {
		t.Fatal(err)
	}
	for range ran.Output(ctx, sdk.WithFollow(true)) {
		break // the exec is running now
	}
	if err := f.Operator.Hosts().Forget(ctx, "w1"); protocol.CodeOf(err) != protocol.FailedPrecondition {
		t.Errorf("forgetting a live host returned %v", err)
	}
	w.Kill()
	waits, err := moves.Start(ctx, script("echo from the new one"))
	if err != nil {
		t.Fatal(err)
	}
	if err := deletes.Delete(ctx, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	if err := stops.Stop(ctx, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	if _, err := ran.Wait(ctx); protocol.AsError(err) == nil ||
		protocol.AsError(err).Reason != protocol.ReasonHostLost {
		t.Errorf("the exec that ran on the lost host: %v", err)
	}
	f.Worker("w2", fleet.Role{Engine: other.Host})
	if r, err := waits.Wait(ctx); err != nil || string(r.Stdout) != "from the new one\n" {
		t.Errorf("the exec that had not started: %v, %v", r, err)
	}
	if err := moves.Refresh(ctx); err != nil || moves.Info().Worker != "w2" || moves.Info().Generation != 2 {
		t.Errorf("the sandbox is on %s in generation %d, %v", moves.Info().Worker, moves.Info().Generation, err)
	}
	if err := f.Operator.Hosts().Forget(ctx, "w1"); err != nil {
		t.Fatal(err)
	}
	if err := deletes.WaitDeleted(ctx); err != nil {
		t.Error(err)
	}
	if err := stops.WaitStopped(ctx); protocol.AsError(err) == nil ||
		protocol.AsError(err).Reason != protocol.ReasonHostForgotten {
		t.Errorf("the stop: %v", err)
	}
	f.Eventually(10*time.Second, "the others have failed", func() error {
		err := fails.Refresh(ctx)
		if b := fails.Info(); err == nil &&
			(b.State != protocol.StateFailed || b.Reason != protocol.ReasonHostForgotten) {
			err = fmt.Errorf("it is %s: %v", b.State, b.Error)
		}
		return err
	})
	if hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx)); err != nil || len(hosts) != 1 || hosts[0].Worker != "w2" {
		t.Errorf("the hosts are %v, %v", hosts, err)
	}
	w.Role.SlowAt, w.Role.SlowBy = "after-network-remove", time.Second // slows down the removal of a sandbox
	w = w.Restart()
	f.Eventually(30*time.Second, "the host takes work", func() error {
		h, err := f.Operator.Hosts().Get(ctx, "w1")
		if err == nil && (h.State != protocol.HostReady || h.Full != "") {
			err = fmt.Errorf("it is %s, %s", h.State, h.Full)
		}
		return err
	})
	for _, left := range append(f.Objects(""), f.Directories(w)...) {
		if strings.Contains(left, "moves") || strings.Contains(left, "deletes") {
			t.Errorf("the host takes work, and %s is left", left)
		}
	}
	for _, s := range []*sdk.Sandbox{stops, fails} {
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	if err := f.Operator.Hosts().Drain(ctx, "w2", 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Operator.Hosts().WaitDrained(ctx, "w2", nil); err != nil {
		t.Fatal(err)
	}
	if err := moves.WaitReady(ctx); err != nil || moves.Refresh(ctx) != nil || moves.Info().Worker != "w1" ||
		moves.Info().Generation != 3 {
		t.Errorf("after the drain the sandbox is on %s in generation %d, %v", moves.Info().Worker,
			moves.Info().Generation, err)
	}
	f.Eventually(10*time.Second, "the drained host has no remains of the sandbox", func() error {
		if left := f.Objects(other.Host); len(left) > 0 {
			return fmt.Errorf("%q", left)
		}
		return nil
	})
	f.Judge()
}

// TestASandboxGoesWhereItsPlacementSays also checks the error for a placement that no host meets.
func TestASandboxGoesWhereItsPlacementSays(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Labels: map[string]string{"zone": "b"}})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Placement = []string{"zone in (a, b)", "disk!=slow"}
	if _, err := f.Client.Create(ctx, spec, sdk.WithID("there")); err != nil {
		t.Fatal(err)
	}
	spec.Placement = append(spec.Placement, "zone=a")
	_, err := f.Client.Create(ctx, spec, sdk.WithID("nowhere"))
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonNoHost || e.Field != "spec.placement[2]" ||
		e.Message != "on w1 label zone is b, wanted a" {
		t.Errorf("a placement without a matching host: %v", err)
	}
	f.Judge()
}

// TestAHostThatMissedAMoveRemovesItsRemains moves a sandbox off a drained host while the host's worker is cut off. The
// notification of the move is sent only once, so the worker never receives it.
func TestAHostThatMissedAMoveRemovesItsRemains(t *testing.T) {
	t.Parallel()
	other := engines.Start(t, "drained")
	engines.LoadImage(t, other, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1, Timing: coordinator.Timing{Scan: 100 * time.Millisecond}})
	link := f.Link()
	f.Worker("w1", fleet.Role{Engine: other.Host, NATS: link.URL(), Reconcile: time.Second})
	ctx := f.Context(2 * time.Minute)
	spec := f.Spec()
	spec.OnHostLoss = protocol.OnHostLossReplace
	s, err := f.Client.Create(ctx, spec, sdk.WithID("moves"))
	if err != nil {
		t.Fatal(err)
	}
	f.Worker("w2", fleet.Role{})
	f.Eventually(10*time.Second, "another host is ready", func() error {
		h, err := f.Operator.Hosts().Get(ctx, "w2")
		if err == nil && (h.State != protocol.HostReady || h.Full != "") {
			err = fmt.Errorf("it is %s, %s", h.State, h.Full)
		}
		return err
	})
	link.Cut()
	if err := f.Operator.Hosts().Drain(ctx, "w1", 0); err != nil {
		t.Fatal(err)
	}
	f.Eventually(20*time.Second, "the sandbox has moved", func() error {
		err := s.Refresh(ctx)
		if err == nil && s.Info().Worker != "w2" {
			err = fmt.Errorf("it is %s on %s", s.Info().State, s.Info().Worker)
		}
		return err
	})
	link.Break()
	link.Mend()
	f.Eventually(30*time.Second, "the drained host has no remains of the sandbox", func() error {
		if left := f.Objects(other.Host); len(left) > 0 {
			return fmt.Errorf("%q", left)
		}
		return nil
	})
	f.Judge()
}
