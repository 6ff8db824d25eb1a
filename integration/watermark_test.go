package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker"
)

// TestQ13_AHostStopsAdmittingBeforeItIsFull runs workers on hosts that are already above a watermark, and one worker
// that has no free subnet.
func TestQ13_AHostStopsAdmittingBeforeItIsFull(t *testing.T) {
	t.Parallel()
	for what, role := range map[string]fleet.Role{
		"disk":   {Watermarks: worker.Watermarks{Disk: 1}},
		"inodes": {Watermarks: worker.Watermarks{Inodes: 1}},
		"memory": {Watermarks: worker.Watermarks{Memory: 1}},
	} {
		t.Run(what, func(t *testing.T) {
			f := fleet.Start(t, fleet.Options{Workers: -1})
			ctx := f.Context(time.Minute)
			full := f.Worker("w1", role)
			s, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("waits"), sdk.WithWait(false))
			if err != nil {
				t.Fatal(err)
			}
			f.Eventually(10*time.Second, "the sandbox waits with a reason", func() error {
				e, err := s.Explain(ctx)
				if err == nil && (len(e.Hosts) != 1 || !strings.Contains(e.Hosts[0].Reason, what)) {
					err = protocol.Errorf(protocol.Internal, "", "%+v", e)
				}
				return err
			})
			hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
			if err != nil || len(hosts) != 1 || !strings.Contains(hosts[0].Full, "watermark is 1%") {
				t.Errorf("%+v, %v", hosts, err)
			}
			full.Stop()
			f.Worker("w1", fleet.Role{}) // has the same effect as if the operator had freed space
			if err := s.WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
			f.Judge()
		})
	}
	t.Run("foreign networks", func(t *testing.T) {
		engine := engines.Default(t).Host
		other := docker(t, engine, "network", "create", "--subnet", "10.222.223.0/24", "boxfleet-test-other")
		t.Cleanup(func() { docker(t, engine, "network", "rm", "--force", other) })
		f := fleet.Start(t, fleet.Options{Workers: -1})
		f.Worker("w1", fleet.Role{NetworkPool: "10.222.223.16/28", Reconcile: 200 * time.Millisecond})
		s, err := f.Client.Create(f.Context(time.Minute), f.Spec(), sdk.WithID("first"), sdk.WithWait(false))
		check(t, err)
		f.Eventually(10*time.Second, "the host reports that it is full", func() error {
			hosts, err := sdk.ReadAll(f.Operator.Hosts().List(f.Context(time.Minute)))
			if err == nil && (len(hosts) != 1 || !strings.Contains(hosts[0].Full, "all subnets")) {
				err = protocol.Errorf(protocol.Internal, "", "%+v", hosts)
			}
			return err
		})
		docker(t, engine, "network", "rm", other)
		check(t, s.WaitReady(f.Context(20*time.Second)))
		f.Judge()
	})
	t.Run("networks", func(t *testing.T) {
		f := fleet.Start(t, fleet.Options{Workers: -1})
		ctx := f.Context(time.Minute)
		f.Worker("w1", fleet.Role{NetworkPool: "10.222.222.0/27"})
		first := f.Create("first")
		f.Create("second")
		third, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("third"), sdk.WithWait(false))
		if err != nil {
			t.Fatal(err)
		}
		f.Eventually(10*time.Second, "the host reports that it is full", func() error {
			hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
			if err == nil && (len(hosts) != 1 || !strings.Contains(hosts[0].Full, "all subnets")) {
				err = protocol.Errorf(protocol.Internal, "", "%+v", hosts)
			}
			return err
		})
		// The third sandbox may have been placed before the host reported that it is full. In that case, too, it stays
		// pending.
		if err := third.Refresh(ctx); err != nil || third.Info().State != protocol.StatePending {
			t.Fatalf("the third is %s, %v", third.Info().State, err)
		}
		if err := first.Stop(ctx); err != nil { // a stopped sandbox keeps its network
			t.Fatal(err)
		}
		if err := first.Resume(ctx); err != nil { // the sandbox has also kept its slot
			t.Fatal(err)
		}
		if err := first.Delete(ctx); err != nil {
			t.Fatal(err)
		}
		if err := third.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		f.Judge()
	})
}
