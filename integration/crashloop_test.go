package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestStoppedTimeDoesNotCountAsACrashLoop stops a sandbox for longer than the crash window. Its primary command ends
// only because of the stop.
func TestStoppedTimeDoesNotCountAsACrashLoop(t *testing.T) {
	t.Parallel()
	const window, guard = 3 * time.Second, 2 * time.Second
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{CrashWindow: window, CrashGuard: guard})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Command = []string{"sleep", "1000"}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	time.Sleep(window + time.Second) // for the test, the sandbox must be stopped for longer than the window
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	for ready := time.Now(); time.Since(ready) < window+guard; time.Sleep(500 * time.Millisecond) {
		if b := f.History("s").State.Sandbox; b.State != protocol.StateReady {
			t.Fatalf("%s after its resume the sandbox is %s: %v", time.Since(ready), b.State, b.Error)
		}
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}

// TestACrashLoopEndsNothingWithoutTheHostsLock cuts the worker off from the log before the crash window ends.
func TestACrashLoopEndsNothingWithoutTheHostsLock(t *testing.T) {
	t.Parallel()
	const ttl, window = 3 * time.Second, 5 * time.Second
	host := engines.Default(t).Host
	f := fleet.Start(t, fleet.Options{Servers: 1, Workers: -1, LockTTL: ttl}) // the link leads to one server
	link := f.Link()
	w := f.Worker("w1", fleet.Role{CrashWindow: window, CrashGuard: 2 * time.Second, NATS: link.URL()})
	ctx := f.Context(2 * time.Minute)
	spec := f.Spec()
	spec.Command = []string{"sh", "-c", "while [ ! -e /tmp/bad ]; do sleep 0.1; done; exit 1"}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	running(f, s, x.ID())
	mustExec(ctx, t, s, script("touch /tmp/bad"))
	link.Cut()
	for cut := time.Now(); time.Since(cut) < window+ttl; time.Sleep(500 * time.Millisecond) {
		if all := docker(t, host, "top", s.Info().Container, "-o", "pid,args"); !strings.Contains(all, "sleep 1000") {
			t.Errorf("%s after the cut its exec was ended: %s", time.Since(cut), all)
			break
		}
	}
	link.Mend()
	if b := inState(f, "s", protocol.StateFailed, 40*time.Second); b.Reason != protocol.ReasonCrashLoop {
		t.Errorf("the sandbox failed with %s", b.Reason)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}

func TestAPrimaryCommandThatRunsOutOfMemoryAgainAndAgainIsNamedSo(t *testing.T) {
	t.Parallel()
	f := crashing(t)
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Memory = 16 << 20
	spec.Command = []string{"sh", "-c", "sleep 1; exec tail /dev/zero"} // the sleep keeps the create from failing
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	// This takes at most 23 s. The first run may last almost as long as the crash guard, 6 s. Then the crash window of
	// 12 s begins. The worker may take another 5 s to fail the sandbox.
	b := inState(f, "s", protocol.StateFailed, 40*time.Second)
	if b.Reason != protocol.ReasonOOMKilled || b.Error == nil || b.Error.Code != protocol.ResourceExhausted {
		t.Errorf("the sandbox failed with %s: %v", b.Reason, b.Error)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// The Engine reports a container as out of memory if any process in it ever ran out of memory, even long ago.
func TestASandboxThatOnceRanOutOfMemoryRestartsWithItsEngine(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "hungry")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host})
	ctx := f.Context(2 * time.Minute)
	greedy := small("exec sleep 1000")
	greedy.Memory = 16 << 20
	s, err := f.Client.Create(ctx, withServices(f, services{"greedy": greedy}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	eats := func(service string) {
		t.Helper()
		r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"tail", "/dev/zero"}, Service: service})
		if err != nil || r.Reason != protocol.ReasonOOMKilled {
			t.Fatalf("a command that uses up the memory in %q: %+v, %v", service, r, err)
		}
	}
	eats("")
	eats("greedy")
	e.Restart()
	f.Eventually(2*adoptedWithin, "the sandbox is ready again", func() error {
		if kinds := f.History("s").Kinds(); !slices.Contains(kinds, protocol.SandboxRestarted) {
			return fmt.Errorf("it is %s: %v", f.History("s").State.Sandbox.State, f.History("s").State.Sandbox.Error)
		}
		return nil
	})
	mustExec(ctx, t, s, script("true"))
	f.Eventually(2*adoptedWithin, "the service is ready again", func() error {
		_, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, Service: "greedy"})
		return err
	})
	if got := serviceEvents(f.History("s"), "greedy"); !slices.Equal(got, []string{string(protocol.ServiceReady)}) {
		t.Errorf("the history of its service has %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}
