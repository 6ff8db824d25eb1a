package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker"
)

func TestARequiredServiceThatFailsFailsTheCreateWithItsOutput(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Images: worker.Images{Registries: []string{"127.0.0.1:9"}}})
	ctx := f.Context(2 * time.Minute)
	withHook := func(v protocol.Service, hooks ...protocol.Hook) protocol.Service {
		v.PostStart = hooks
		return v
	}
	missing := protocol.Service{Image: "127.0.0.1:9/none:1"}
	growing := neverReady(small("echo growing; exec tail /dev/zero"))
	growing.Memory = 16 << 20
	for name, k := range map[string]struct {
		service protocol.Service
		reason  string
		says    []string
	}{
		"ends": {neverReady(small("echo cannot open the database >&2; exit 3")), protocol.ReasonContainerExited,
			[]string{"cannot open the database", "last exit code was 3"}},
		"not-there": {protocol.Service{Image: fleet.Image, Command: []string{"/no/such"}}, protocol.ReasonStartFailed,
			[]string{"/no/such"}},
		"unhealthy": {withCheck(small("echo waiting for godot; exec sleep 1000"), "echo not yet; false"),
			protocol.ReasonUnhealthy, []string{"not yet", "waiting for godot"}},
		"hook": {withHook(small("exec sleep 1000"), hook("echo migration failed; exit 4")),
			protocol.ReasonHookFailed, []string{"migration failed", "exit code 4"}},
		"slow-hook": {withHook(small("exec sleep 1000"),
			protocol.Hook{Command: []string{"sleep", "1000"},
				Timeout: protocol.Duration(time.Second)}, hook("true")), protocol.ReasonHookFailed, []string{"ran longer than 1s"}},
		"image":  {missing, "", []string{"127.0.0.1:9/none:1"}},
		"memory": {growing, protocol.ReasonOOMKilled, []string{"out of memory", "16MiB"}},
	} {
		f.Run(t, name, func(t *testing.T) {
			_, err := f.Client.Create(ctx,
				withServices(f, services{"db": k.service}, services{"opt": small("exec sleep 1000")}), sdk.WithID(name))
			e := protocol.AsError(err)
			if e == nil || k.reason != "" && e.Reason != k.reason ||
				!strings.HasPrefix(e.Field, "spec.required_services.db") {
				t.Fatalf("got %v, want the reason %s", err, k.reason)
			}
			for _, want := range k.says {
				if !strings.Contains(e.Message, want) {
					t.Errorf("the error does not say %q: %v", want, e)
				}
			}
			if events := serviceEvents(f.History(name), "db"); len(events) == 0 ||
				!strings.HasPrefix(events[len(events)-1], "service.failed") {
				t.Errorf("the history has %q", events)
			}
			f.Eventually(10*time.Second, "nothing is left", func() error {
				if left := append(f.Objects(""), f.Directories(f.Processes("worker")[0])...); len(left) > 0 {
					return fmt.Errorf("%q", left)
				}
				return nil
			})
		})
	}
	f.Judge()
}

// TestACreateThatFailsLeavesNoContainerOfAnyName also creates a container on the engine that has the sandbox's labels
// and a different name.
func TestACreateThatFailsLeavesNoContainerOfAnyName(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	host := engines.Default(t).Host
	late := "boxfleet-late-" + f.Conn.Deployment()
	docker(t, host, append([]string{"create", "--name", late},
		append(orphanLabels(f, "s", "1"), fleet.Image, "true")...)...)
	_, err := f.Client.Create(f.Context(time.Minute), withServices(f, services{"db": neverReady(small("exit 3"))}, nil),
		sdk.WithID("s"))
	if err == nil {
		t.Error("the create does not fail")
	}
	gone(t, f, host, late)
	f.Judge()
}

// TestARequiredServiceThatIsNotReadyInTimeFailsWithItsOutput tests a resume and a create.
func TestARequiredServiceThatIsNotReadyInTimeFailsWithItsOutput(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	const patience = 20 * time.Second // time limit of a create; the first create must succeed within it
	slow := withCheck(small("echo still loading; exec sleep 1000"), "! [ -e /tmp/slow ]")
	never := neverReady(small("echo still loading; exec sleep 1000"))
	slow.Healthcheck.Retries = 1000
	overdue := func(id string) {
		t.Helper()
		b := inState(f, id, protocol.StateFailed, patience+20*time.Second)
		if b.Reason != protocol.ReasonCreateTimeout || b.Error.Field != "spec.required_services.db" ||
			!strings.Contains(b.Error.Message, "health test") || !strings.Contains(b.Error.Message, "still loading") {
			t.Errorf("%s failed with %q: %+v", id, b.Reason, b.Error)
		}
	}
	spec := withServices(f, services{"db": slow}, nil)
	spec.CreateTimeout = protocol.Duration(patience)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("resumed"))
	if err != nil {
		t.Fatal(err)
	}
	spec.RequiredServices = services{"db": never}
	if _, err := f.Client.Create(ctx, spec, sdk.WithID("created"), sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	printedBy(t, ctx, s, "db", "touch", "/tmp/slow")
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(ctx, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	overdue("created")
	overdue("resumed")
	f.Judge()
}

// When the time limit of an optional service has passed, the service's error says what the service waited for.
func TestAnOptionalServiceThatIsNotReadyInTimeSaysWhy(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	spec := withServices(f, nil, services{"db": neverReady(small("echo still loading; exec sleep 1000"))})
	spec.CreateTimeout = protocol.Duration(10 * time.Second)
	if _, err := f.Client.Create(f.Context(time.Minute), spec, sdk.WithID("s")); err != nil {
		t.Fatal(err)
	}
	f.Eventually(time.Minute, "the service fails",
		func() error { return serviceIs(f, "s", "db", protocol.ServiceStateFailed) })
	why := f.History("s").State.Sandbox.Services["db"].Error
	if why == nil || why.Reason != protocol.ReasonCreateTimeout || !strings.Contains(why.Message, "health test") ||
		!strings.Contains(why.Message, "still loading") {
		t.Errorf("the service failed with %+v", why)
	}
	f.Judge()
}

// crashing starts a fleet in which a service needs only seconds to fail with a crash loop.
func crashing(t *testing.T) *fleet.Fleet {
	f := fleet.Start(t, fleet.Options{Workers: -1})
	// These times are long enough for a slow host to run out of memory.
	f.Worker("w1", fleet.Role{CrashWindow: 12 * time.Second, CrashGuard: 6 * time.Second})
	return f
}

func TestAServiceThatLoopsIsFailedAndItsSandboxStaysReady(t *testing.T) {
	t.Parallel()
	f := crashing(t)
	ctx := f.Context(3 * time.Minute)
	// Each of these services runs until the file /tmp/bad exists, and from then on ends soon after each start.
	fragile := func(end string) protocol.Service {
		return small("echo up; [ -e /tmp/bad ] || { while ! [ -e /tmp/bad ]; do sleep 0.1; done; }; echo going down; " + end)
	}
	greedy := fragile("exec tail /dev/zero")
	greedy.Memory = 16 << 20
	s, err := f.Client.Create(ctx, withServices(f, services{"db": fragile("exit 7")}, services{"greedy": greedy}),
		sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(10*time.Second, "both are ready", func() error {
		if status := f.History("s").State.Sandbox.Services["greedy"]; status.State != protocol.ServiceStateReady {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	for _, name := range []string{"db", "greedy"} {
		printedBy(t, ctx, s, name, "touch", "/tmp/bad")
	}
	f.Eventually(time.Minute, "both have failed", func() error {
		b := f.History("s").State.Sandbox
		db, greedy := b.Services["db"], b.Services["greedy"]
		if db.State != protocol.ServiceStateFailed || db.Reason != protocol.ReasonCrashLoop ||
			!strings.Contains(db.Error.Message, "going down") {
			return fmt.Errorf("db is %+v", db)
		}
		if greedy.State != protocol.ServiceStateFailed || greedy.Reason != protocol.ReasonOOMKilled {
			return fmt.Errorf("greedy is %+v", greedy)
		}
		if b.State != protocol.StateReady {
			return fmt.Errorf("the sandbox is %s", b.State)
		}
		return nil
	})
	// If a failed service then runs for longer than the crash guard, it becomes ready again.
	f.Eventually(15*time.Second, "its container takes execs", func() error {
		_, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"rm", "/tmp/bad"}, Service: "db"})
		return err
	})
	f.Eventually(40*time.Second, "it is ready again", func() error {
		if status := f.History("s").State.Sandbox.Services["db"]; status.State != protocol.ServiceStateReady {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	t.Logf("events of db: %q; events of greedy: %q", serviceEvents(f.History("s"), "db"),
		serviceEvents(f.History("s"), "greedy"))
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

func TestAServiceThatBecomesUnhealthyIsReported(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	v := withCheck(small("exec sleep 1000"), "test ! -e /tmp/sick")
	s, err := f.Client.Create(ctx, withServices(f, services{"v": v}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	printedBy(t, ctx, s, "v", "touch", "/tmp/sick")
	f.Eventually(10*time.Second, "the service has failed", func() error {
		if status := f.History("s").State.Sandbox.Services["v"]; status.Reason != protocol.ReasonUnhealthy {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	printedBy(t, ctx, s, "v", "rm", "/tmp/sick")
	f.Eventually(10*time.Second, "the service is ready again", func() error {
		if status := f.History("s").State.Sandbox.Services["v"]; status.State != protocol.ServiceStateReady {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	f.Judge()
}

func TestAPrimaryThatLoopsStopsItsServicesToo(t *testing.T) {
	t.Parallel()
	f := crashing(t)
	ctx := f.Context(time.Minute)
	spec := withServices(f, services{"db": small("exec sleep 1000")}, nil)
	spec.Command = []string{"sh", "-c", "sleep 1; false"} // if the command ended at once, the create would fail
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	// The crash window is 12 s, and it may take another 5 s to stop everything.
	f.Eventually(40*time.Second, "the sandbox fails, and everything is stopped and kept", func() error {
		b := f.History("s").State.Sandbox
		running, err := dockerRunning(f)
		if b.State != protocol.StateFailed || b.Reason != protocol.ReasonCrashLoop || err != nil || len(running) > 0 {
			return fmt.Errorf("%s %s, running %q, %v", b.State, b.Reason, running, err)
		}
		return nil
	})
	if kept := f.Objects(""); len(kept) != 3 {
		t.Errorf("kept for inspection: %q", kept)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// TestAServiceWhoseCommandHasDiedIsNotReadyForItsTest uses a service with a health test that passes even though the
// service's command has ended.
func TestAServiceWhoseCommandHasDiedIsNotReadyForItsTest(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	v := small("exit 4")
	v.Healthcheck = &protocol.Healthcheck{Test: []string{"CMD", "true"}}
	_, err := f.Client.Create(f.Context(time.Minute), withServices(f, services{"db": v}, nil), sdk.WithID("s"))
	if err == nil || !strings.Contains(err.Error(), "exit code was 4") {
		t.Errorf("the create: %v, want that it fails with exit code was 4", err)
	}
	ends := 0
	for _, e := range f.History("s").Events {
		if e.Kind == protocol.ServiceReady {
			t.Errorf("event %d reports the service as ready", e.Sequence)
		}
		if e.Kind == protocol.ServiceEnded {
			if ends++; e.Service.ExitCode == nil || *e.Service.ExitCode != 4 {
				t.Errorf("the end is %+v", e.Service)
			}
		}
	}
	if ends == 0 || ends > 3 {
		t.Errorf("%d ends of the command are in the history", ends)
	}
	f.Judge()
}
