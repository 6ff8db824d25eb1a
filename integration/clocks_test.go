package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// The coordinator's clock is 15 days ahead, which is as long as stopped sandboxes are kept. First the worker's clock is
// ahead by more than the time limit of a create. After a restart it is behind by more than the time limit of an exec.
func TestAFleetWithSkewedClocksWorks(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Coordinators: -1, Workers: -1})
	f.Coordinator("c1", fleet.Role{Clock: 15 * 24 * time.Hour, Timing: impatient})
	f.Connect()
	w := f.Worker("w1", fleet.Role{Clock: 320 * time.Second})
	ctx := f.Context(2 * time.Minute)
	skewed := func(by time.Duration) {
		t.Helper()
		f.Eventually(15*time.Second, "the host list shows the skew", func() error {
			hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
			if err != nil {
				return err
			}
			if len(hosts) != 1 || hosts[0].Skew == nil || !hosts[0].ClockOff ||
				(hosts[0].Skew.Std()-by).Abs() > 30*time.Second {
				return fmt.Errorf("%+v", hosts)
			}
			return nil
		})
	}

	began := time.Now()
	spec := f.Spec()
	spec.IdleTTL = protocol.Duration(10 * time.Minute)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("a"))
	if err != nil {
		t.Fatal(err)
	}
	skewed(320 * time.Second)
	stopped := f.Create("stopped")
	if err := stopped.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c",
		"while [ ! -e /tmp/enough ]; do sleep 0.1; done; echo told"}, Timeout: protocol.Duration(time.Minute)},
		sdk.WithID("x"))
	if err != nil {
		t.Fatal(err)
	}

	w.Stop()
	f.Worker("w1", fleet.Role{Clock: -15 * time.Minute})
	skewed(-15 * time.Minute)
	// When a short sandbox is deleted, the watchdog has checked all sandboxes. If exec x appeared overdue, the watchdog
	// would have ended x.
	for i := range 3 {
		short := f.Spec()
		short.TTL = protocol.Duration(time.Second)
		id := fmt.Sprint("short-", i)
		if _, err := f.Client.Create(ctx, short, sdk.WithID(id), sdk.WithWait(false)); err != nil {
			t.Fatal(err)
		}
		f.Eventually(20*time.Second, "its end", func() error {
			s, err := f.Client.Get(ctx, id)
			if err == nil && s.Info().State != protocol.StateDeleted {
				err = fmt.Errorf("%s is %s", id, s.Info().State)
			}
			return err
		})
	}
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"touch", "/tmp/enough"}}); err != nil {
		t.Fatal(err)
	}
	result, err := x.Wait(ctx)
	if err != nil || result.ExitCode == nil || *result.ExitCode != 0 || string(result.Stdout) != "told\n" {
		t.Fatalf("%+v, %v", result, err)
	}

	s, err = f.Client.Get(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if b := s.Info(); b.State != protocol.StateReady || b.Desired != protocol.StateReady {
		t.Errorf("a sandbox in use is %s, desired %s: %s", b.State, b.Desired, b.Reason)
	}
	if stopped, err = f.Client.Get(ctx, "stopped"); err != nil || stopped.Info().State != protocol.StateStopped {
		t.Errorf("a sandbox stopped a moment ago is %+v, %v", stopped, err)
	}
	// All times in the history come from the clock of the store.
	over := time.Now()
	x, err = s.GetExec(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	info := s.Info()
	for what, at := range map[string]time.Time{"created": info.CreatedAt, "assigned": info.AssignedAt,
		"ready": info.ReadyAt, "active": info.ActiveAt,
		"exec accepted": x.Info().AcceptedAt, "exec started": x.Info().StartedAt, "exec ended": x.Info().EndedAt} {
		if at.Before(began.Add(-time.Minute)) || at.After(over.Add(time.Minute)) {
			t.Errorf("%s at %s, and the test ran from %s to %s", what, at, began, over)
		}
	}
}
