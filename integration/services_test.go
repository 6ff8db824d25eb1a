package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker"
)

// small is a service from the small image, which runs a line of shell.
func small(script string) protocol.Service {
	return protocol.Service{Image: fleet.Image, Command: []string{"sh", "-c", script}, Memory: 32 << 20}
}

// withCheck gives a service a quick health check.
func withCheck(v protocol.Service, test string) protocol.Service {
	v.Healthcheck = &protocol.Healthcheck{Test: []string{"CMD-SHELL", test}, Interval: protocol.Duration(200 * time.Millisecond),
		Timeout: protocol.Duration(2 * time.Second), Retries: 5, StartInterval: protocol.Duration(100 * time.Millisecond)}
	return v
}

// neverReady gives a service a health check that does not pass. Without one, what is to end at once would
// be ready first where the machine is slow.
func neverReady(v protocol.Service) protocol.Service {
	v = withCheck(v, "false")
	v.Healthcheck.Retries = 1000
	return v
}

// web is a service that is ready after a while, and answers on port 80.
func web(after string) protocol.Service { return webAfter("sleep " + after) }

// webWhenTold is a web that is ready once somebody has made a file.
func webWhenTold(file string) protocol.Service {
	return webAfter("until [ -e " + file + " ]; do sleep 0.05; done")
}

// webAfter is a web that is ready after a line of shell.
func webAfter(waits string) protocol.Service {
	v := withCheck(small("echo starting; "+waits+"; mkdir -p /tmp/w; echo hello >/tmp/w/index.html; exec httpd -f -h /tmp/w -p 80"), "wget -q -O /dev/null http://127.0.0.1/")
	v.Healthcheck.Retries = 1000
	return v
}

func hook(script string) protocol.Hook {
	return protocol.Hook{Command: []string{"sh", "-c", script}, Timeout: protocol.Duration(10 * time.Second)}
}

// withServices is a small spec with these services.
func withServices(f *fleet.Fleet, required, optional map[string]protocol.Service) protocol.SandboxSpec {
	spec := f.Spec()
	spec.RequiredServices, spec.OptionalServices = required, optional
	return spec
}

type services = map[string]protocol.Service

// printedBy runs a command and returns what it printed; it must end with exit code 0.
func printedBy(t *testing.T, ctx context.Context, s *sdk.Sandbox, service string, command ...string) string {
	t.Helper()
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: command, Service: service, Timeout: protocol.Duration(20 * time.Second)})
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	if r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("%q ended with %v: %s%s", command, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// serviceEvents lists the events of a service, as "kind" or "kind reason", but for ends of its command.
func serviceEvents(h *fleet.History, name string) []string {
	var found []string
	for _, e := range h.Events {
		if e.Service != nil && e.Service.Name == name && e.Kind != protocol.ServiceEnded {
			found = append(found, strings.TrimSpace(string(e.Kind)+" "+e.Reason))
		}
	}
	return found
}

// serviceIs says what is wrong where a service of a sandbox is not in a state.
func serviceIs(f *fleet.Fleet, id, name string, state protocol.ServiceState) error {
	if status := f.History(id).State.Sandbox.Services[name]; status.State != state {
		return fmt.Errorf("%s is %+v", name, status)
	}
	return nil
}

func TestRequiredServicesGateReadyAndAreReachedByName(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	begun := time.Now()
	s, err := f.Client.Create(ctx, withServices(f, services{"web": web("1"), "other": web("1"), "third": small("exec sleep 1000")}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	t.Logf("ready after %s", took.Round(time.Millisecond))
	if took < time.Second {
		t.Errorf("ready after %s, before its services can be", took)
	}
	h := f.History("s")
	kinds := h.Kinds()
	if n := slices.Index(kinds, protocol.SandboxReady); n < 0 || slices.Index(kinds[n:], protocol.ServiceReady) >= 0 || slices.Index(kinds, protocol.ServiceReady) < 0 {
		t.Errorf("the services are not ready before the sandbox: %v", kinds)
	}
	for _, name := range []string{"web", "other", "third"} {
		if status := h.State.Sandbox.Services[name]; status.State != protocol.ServiceStateReady || !status.Required {
			t.Errorf("%s is %+v", name, status)
		}
	}
	if got := printedBy(t, ctx, s, "", "wget", "-q", "-O", "-", "http://web/"); got != "hello" {
		t.Errorf("the primary reads %q from the service", got)
	}
	if got := printedBy(t, ctx, s, "web", "wget", "-q", "-O", "-", "http://other/"); got != "hello" {
		t.Errorf("a service reads %q from another", got)
	}
	if got := printedBy(t, ctx, s, "web", "hostname"); got != "web" {
		t.Errorf("the service's host name is %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

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
		"ends":      {neverReady(small("echo cannot open the database >&2; exit 3")), protocol.ReasonContainerExited, []string{"cannot open the database", "exit code 3"}},
		"not-there": {protocol.Service{Image: fleet.Image, Command: []string{"/no/such"}}, protocol.ReasonStartFailed, []string{"/no/such"}},
		"unhealthy": {withCheck(small("echo waiting for godot; exec sleep 1000"), "echo not yet; false"), protocol.ReasonUnhealthy, []string{"not yet", "waiting for godot"}},
		"hook":      {withHook(small("exec sleep 1000"), hook("echo migration failed; exit 4")), protocol.ReasonHookFailed, []string{"migration failed", "exit code 4"}},
		"slow-hook": {withHook(small("exec sleep 1000"), protocol.Hook{Command: []string{"sleep", "1000"}, Timeout: protocol.Duration(time.Second)}, hook("true")), protocol.ReasonHookFailed, []string{"ran longer than 1s"}},
		"image":     {missing, "", []string{"127.0.0.1:9/none:1"}},
		"memory":    {growing, protocol.ReasonOOMKilled, []string{"out of memory", "16MiB"}},
	} {
		f.Run(t, name, func(t *testing.T) {
			_, err := f.Client.Create(ctx, withServices(f, services{"db": k.service}, services{"opt": small("exec sleep 1000")}), sdk.WithID(name))
			e := protocol.AsError(err)
			if e == nil || k.reason != "" && e.Reason != k.reason || !strings.HasPrefix(e.Field, "spec.required_services.db") {
				t.Fatalf("got %v, want the reason %s", err, k.reason)
			}
			for _, want := range k.says {
				if !strings.Contains(e.Message, want) {
					t.Errorf("the error does not say %q: %v", want, e)
				}
			}
			if events := serviceEvents(f.History(name), "db"); len(events) == 0 || !strings.HasPrefix(events[len(events)-1], "service.failed") {
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

// TestACreateThatFailsLeavesNoContainerOfAnyName has one with the sandbox's labels beside its own.
func TestACreateThatFailsLeavesNoContainerOfAnyName(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	host := engines.Default(t).Host
	late := "boxfleet-late-" + f.Conn.Deployment()
	docker(t, host, append([]string{"create", "--name", late}, append(orphanLabels(f, "s", "1"), fleet.Image, "true")...)...)
	_, err := f.Client.Create(f.Context(time.Minute), withServices(f, services{"db": neverReady(small("exit 3"))}, nil), sdk.WithID("s"))
	if err == nil {
		t.Error("it does not fail")
	}
	gone(t, f, host, late)
	f.Judge()
}

// TestARequiredServiceThatIsNotReadyInTimeFailsWithItsOutput, at a resume and at a create.
func TestARequiredServiceThatIsNotReadyInTimeFailsWithItsOutput(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	const patience = 20 * time.Second // in which the first create is to succeed
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

func TestAnOptionalServiceBlocksNothing(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	late := webWhenTold("/tmp/go")
	late.PostStart = []protocol.Hook{hook("echo hooked >/tmp/hooked")}
	s, err := f.Client.Create(ctx, withServices(f, nil, services{"late": late, "bad": neverReady(small("echo broken; exit 5")), "none": {Image: "127.0.0.1:9/none:1"}}), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	if status := f.History("s").State.Sandbox.Services["late"]; status.State != protocol.ServiceStateStarting {
		t.Errorf("the sandbox waited for an optional service, which is %+v", status)
	}
	printedBy(t, ctx, s, "late", "touch", "/tmp/go")
	f.Eventually(15*time.Second, "each service has its outcome", func() error {
		h := f.History("s")
		late, bad, none := h.State.Sandbox.Services["late"], h.State.Sandbox.Services["bad"], h.State.Sandbox.Services["none"]
		if late.State != protocol.ServiceStateReady || bad.State != protocol.ServiceStateFailed || none.State != protocol.ServiceStateFailed {
			return fmt.Errorf("%+v, %+v, %+v", late, bad, none)
		}
		if bad.Reason != protocol.ReasonContainerExited || bad.Error == nil || !strings.Contains(bad.Error.Message, "broken") {
			return fmt.Errorf("the reason is %s, %v", bad.Reason, bad.Error)
		}
		return nil
	})
	if got := printedBy(t, ctx, s, "", "sh", "-c", "wget -q -O - http://late/; cat /tmp/hooked"); got != "hello\nhooked" {
		t.Errorf("got %q", got)
	}
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, Service: "none"}); protocol.AsError(err).Reason != protocol.ReasonServiceDown {
		t.Errorf("an exec in a service that has no container: %v", err)
	}
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, Service: "unknown"}); protocol.CodeOf(err) != protocol.InvalidArgument || protocol.AsError(err).Field != "spec.service" {
		t.Errorf("an exec in a service that is not in the spec: %v", err)
	}
	if err := s.Refresh(ctx); err != nil || s.Info().State != protocol.StateReady {
		t.Errorf("the sandbox is %s, %v", s.Info().State, err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

func TestS10_HooksRunAsTheSandboxsUserAndAgainAfterAResumeWhereAskedFor(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	v := web("0.3")
	again := hook("echo again >>/tmp/hooks; wget -q -O - http://web/ >>/tmp/hooks")
	again.OnResume = true
	v.PostStart = []protocol.Hook{hook("id -un >>/tmp/hooks; pwd >>/tmp/hooks; echo said"), again}
	opt := small("exec sleep 1000")
	opt.PostStart = []protocol.Hook{hook("echo no migration; exit 9")}
	spec := withServices(f, services{"web": v}, services{"opt": opt})
	spec.User, spec.Cwd = "box", "/home/box"
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	if got := printedBy(t, ctx, s, "", "cat", "/tmp/hooks"); got != "box\n/home/box\nagain\nhello" {
		t.Errorf("the hooks wrote %q", got)
	}
	f.Eventually(10*time.Second, "the failed hook is in the history", func() error {
		if got := serviceEvents(f.History("s"), "opt"); !slices.Equal(got, []string{"service.hook hook_failed", "service.failed hook_failed"}) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	h := f.History("s")
	for _, e := range h.Events {
		if e.Kind != protocol.ServiceHook {
			continue
		}
		t.Logf("%s hook %d: %v %q %v", e.Service.Name, e.Service.Hook, *e.Service.ExitCode, e.Service.Output, e.Error)
		if e.Service.Name == "opt" && (*e.Service.ExitCode != 9 || !strings.Contains(string(e.Service.Output), "no migration")) {
			t.Errorf("the failed hook: %+v", e.Service)
		}
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if running, err := dockerRunning(f); err != nil || len(running) > 0 {
		t.Errorf("running after the stop: %q, %v", running, err)
	}
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if got := printedBy(t, ctx, s, "", "cat", "/tmp/hooks"); got != "box\n/home/box\nagain\nhello\nagain\nhello" {
		t.Errorf("after the resume the hooks have written %q", got)
	}
	if got := serviceEvents(f.History("s"), "web"); !slices.Equal(got, []string{"service.hook", "service.hook", "service.ready", "service.hook", "service.ready"}) {
		t.Errorf("the history has %q", got)
	}
	f.Eventually(10*time.Second, "the service whose hook is not run again is ready", func() error {
		if status := f.History("s").State.Sandbox.Services["opt"]; status.State != protocol.ServiceStateReady {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// dockerRunning lists the fleet's containers that run.
func dockerRunning(f *fleet.Fleet) ([]string, error) {
	out, err := exec.Command("docker", "ps", "--format", "{{.Names}}", "--filter", "label=boxfleet.deployment="+f.Conn.Deployment()).Output()
	return strings.Fields(string(out)), err
}

func TestExecsAndLogsOfAService(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	talker := small("echo first; echo oops >&2; while ! [ -e /tmp/go ]; do sleep 0.1; done; echo second; head -c 3000000 /dev/zero; echo; echo last; exec sleep 1000")
	talker.Env, talker.User = map[string]string{"WHO": "service"}, "box"
	s, err := f.Client.Create(ctx, withServices(f, services{"talker": talker}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	if got := printedBy(t, ctx, s, "talker", "sh", "-c", "echo $WHO; id -un; hostname"); got != "service\nbox\ntalker" {
		t.Errorf("an exec in the service prints %q", got)
	}
	slow, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}, Service: "talker", Timeout: protocol.Duration(300 * time.Millisecond)})
	if slow == nil || slow.State != protocol.ExecStateTimedOut {
		t.Errorf("an exec that runs too long: %+v, %v", slow, err)
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	var stdout, stderr strings.Builder
	gaps := int64(0)
	for k, err := range s.Logs(following, sdk.WithService("talker"), sdk.WithFollow(true)) {
		if err != nil {
			t.Fatal(err)
		}
		into := &stdout
		if k.Stream == sdk.Stderr {
			into = &stderr
		}
		if into == &stdout {
			gaps = k.Offset + int64(len(k.Data))
		}
		into.Write(k.Data)
		if strings.HasSuffix(stdout.String(), "first\n") && stderr.String() == "oops\n" {
			printedBy(t, ctx, s, "talker", "touch", "/tmp/go")
		}
		if strings.HasSuffix(stdout.String(), "last\n") {
			break
		}
	}
	if total := int64(len("first\nsecond\n") + 3_000_000 + len("\nlast\n")); gaps != total || stderr.String() != "oops\n" {
		t.Errorf("the output ends at %d of %d, stderr is %q", gaps, total, stderr.String())
	}
	t.Logf("%d of %d bytes were kept", stdout.Len(), gaps)
	for _, err := range s.Logs(ctx, sdk.WithService("nobody")) {
		if protocol.CodeOf(err) != protocol.InvalidArgument {
			t.Errorf("the output of a service that is not there: %v", err)
		}
	}
	// An exec in a service ends with the sandbox's stop, and its record says so.
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}, Service: "talker"})
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(5*time.Second, "it runs", func() error {
		if x, err := s.GetExec(ctx, x.ID()); err != nil || x.Info().State != protocol.ExecStateRunning {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := s.GetExec(ctx, x.ID()); err != nil || got.Info().State != protocol.ExecStateCancelled || got.Info().Reason != protocol.ReasonSandboxStopped {
		t.Errorf("the exec is %+v, %v", got.Info(), err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// crashing is a fleet whose services loop within seconds.
func crashing(t *testing.T) *fleet.Fleet {
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{CrashWindow: 12 * time.Second, CrashGuard: 6 * time.Second}) // what runs out of memory takes a while on a slow host
	return f
}

func TestAServiceThatLoopsIsFailedAndItsSandboxStaysReady(t *testing.T) {
	t.Parallel()
	f := crashing(t)
	ctx := f.Context(3 * time.Minute)
	// Each runs until it is told to end again and again.
	fragile := func(end string) protocol.Service {
		return small("echo up; [ -e /tmp/bad ] || { while ! [ -e /tmp/bad ]; do sleep 0.1; done; }; echo going down; " + end)
	}
	greedy := fragile("exec tail /dev/zero")
	greedy.Memory = 16 << 20
	s, err := f.Client.Create(ctx, withServices(f, services{"db": fragile("exit 7")}, services{"greedy": greedy}), sdk.WithID("s"))
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
		if db.State != protocol.ServiceStateFailed || db.Reason != protocol.ReasonCrashLoop || !strings.Contains(db.Error.Message, "going down") {
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
	// One that runs again for the guard is ready again.
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
	t.Logf("%q, %q", serviceEvents(f.History("s"), "db"), serviceEvents(f.History("s"), "greedy"))
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

func TestAServiceThatIsNotHealthyAnyMoreIsSaidToBeSo(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	v := withCheck(small("exec sleep 1000"), "test ! -e /tmp/sick")
	s, err := f.Client.Create(ctx, withServices(f, services{"v": v}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	printedBy(t, ctx, s, "v", "touch", "/tmp/sick")
	f.Eventually(10*time.Second, "it has failed", func() error {
		if status := f.History("s").State.Sandbox.Services["v"]; status.Reason != protocol.ReasonUnhealthy {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	printedBy(t, ctx, s, "v", "rm", "/tmp/sick")
	f.Eventually(10*time.Second, "it is ready again", func() error {
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
	spec.Command = []string{"sh", "-c", "sleep 1; false"} // one that ends at once fails the create
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	// The window is 12 s, and what follows may take 5.
	f.Eventually(40*time.Second, "it fails, and everything is stopped and kept", func() error {
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

// TestAWorkerKilledWhileItBringsServicesUp kills a worker at each step of bringing a service up, of a
// stop and of a delete. Its successor goes on from there.
func TestAWorkerKilledWhileItBringsServicesUp(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	tree := t.TempDir()
	writeFile(t, filepath.Join(tree, "f"), "copied", 0o644, time.Now())
	copied, err := f.Client.Upload(f.Context(time.Minute), tree, "/tree", sdk.WithService("web"))
	if err != nil {
		t.Fatal(err)
	}
	deletes := []string{"after-container-remove", "after-services-remove", "after-network-remove"}
	for i, at := range []string{
		"before-service-create", "after-service-create", "after-service-copy", "before-service-start", "after-service-start", "after-service-hello",
		"before-service-hook", "after-service-hook", "before-service-ready", "after-service-ready", "before-ready",
	} {
		id, deleteAt := fmt.Sprintf("s%d", i), deletes[i%len(deletes)]
		f.Run(t, at, func(t *testing.T) {
			defer killAll(f, "worker")
			w := f.Worker("w1", fleet.Role{CrashAt: at})
			ctx := f.Context(time.Minute)
			v := web("0.1")
			v.PostStart = []protocol.Hook{hook("echo x >>/tmp/hooks")}
			created := begin(func() error {
				spec := withServices(f, services{"web": v}, services{"opt": small("exec sleep 1000")})
				spec.Copies = []protocol.Copy{copied}
				_, err := f.Client.Create(ctx, spec, sdk.WithID(id))
				return err
			})
			w.AwaitKilled(20 * time.Second)
			restarted := time.Now()
			w = f.Worker("w1", fleet.Role{CrashAt: "after-services-stop"})
			if err := doneWithin(t, restarted, "ready", created); err != nil {
				t.Fatalf("create: %v", err)
			}
			s := f.Client.Sandbox(id)
			if got := printedBy(t, ctx, s, "", "sh", "-c", "wget -q -O - http://web/; cat /tmp/hooks"); got != "hello\nx" {
				t.Errorf("the primary reads %q", got)
			}
			if got := printedBy(t, ctx, s, "web", "cat", "/tree/f"); got != "copied" {
				t.Errorf("the service has a copy that reads %q", got)
			}
			x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "trap 'exit 3' TERM; echo going; while :; do sleep 0.1; done"}, Service: "web"})
			if err != nil {
				t.Fatal(err)
			}
			stopped := begin(func() error { return s.Stop(ctx) })
			w.AwaitKilled(20 * time.Second)
			restarted = time.Now()
			w = f.Worker("w1", fleet.Role{CrashAt: deleteAt})
			if err := doneWithin(t, restarted, "stopped", stopped); err != nil {
				t.Fatalf("stop: %v", err)
			}
			if got, err := s.GetExec(ctx, x.ID()); err != nil || !got.Info().State.Terminal() {
				t.Errorf("the exec is %+v, %v", got, err)
			}
			deleted := begin(func() error { return s.Delete(ctx) })
			w.AwaitKilled(20 * time.Second)
			restarted = time.Now()
			w = w.Restart()
			if err := doneWithin(t, restarted, "deleted, killed "+deleteAt, deleted); err != nil {
				t.Fatalf("delete: %v", err)
			}
			nothingLeft(t, f, w)
		})
	}
	f.Judge()
}

func TestAWorkersRestartCostsNoService(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s, err := f.Client.Create(ctx, withServices(f, services{"web": web("0.1")}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	printedBy(t, ctx, s, "web", "touch", "/tmp/here")
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "until [ -e /tmp/go ]; do sleep 0.05; done; cat /proc/1/comm; exit 6"}, Service: "web"})
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(5*time.Second, "it runs", func() error {
		if x, err := s.GetExec(ctx, x.ID()); err != nil || x.Info().State != protocol.ExecStateRunning {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	w := f.Processes("worker")[0]
	w.Kill()
	w.Restart()
	printedBy(t, ctx, s, "web", "touch", "/tmp/go")
	r, err := x.Wait(ctx)
	if err != nil || r.ExitCode == nil || *r.ExitCode != 6 {
		t.Errorf("the exec ended with %+v, %v", r, err)
	}
	if got := printedBy(t, ctx, s, "web", "ls", "/tmp/here"); got != "/tmp/here" {
		t.Errorf("got %q", got)
	}
	if got := serviceEvents(f.History("s"), "web"); !slices.Equal(got, []string{"service.ready"}) {
		t.Errorf("the history has %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// imageWith makes an image of the small one and instructions of a Dockerfile, for as long as the test runs. What
// uses it must end before: make it first.
func imageWith(t *testing.T, name string, instructions ...string) string {
	t.Helper()
	run := func(args ...string) string {
		out, err := exec.Command("docker", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("docker %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	ref := fmt.Sprintf("boxfleet/test:%s-%d", name, os.Getpid())
	create, commit := []string{"create", "--entrypoint", ""}, []string{"commit"}
	for _, line := range instructions {
		if signal, ok := strings.CutPrefix(line, "STOPSIGNAL "); ok { // which a commit takes from the container
			create = append(create, "--stop-signal", signal)
		} else {
			commit = append(commit, "--change", line)
		}
	}
	container := run(append(create, fleet.Image, "true")...)
	defer run("rm", container)
	run(append(commit, container, ref)...)
	t.Cleanup(func() { run("rmi", ref) })
	return ref
}

// image makes a test image where the engine does not have it.
func image(t *testing.T, name string) {
	t.Helper()
	if out, err := exec.Command("../scripts/image", name).CombinedOutput(); err != nil {
		t.Fatalf("make the image %s: %v\n%s", name, err, out)
	}
}

// postgres is PostgreSQL as Debian has it, set up at its first start. It starts as root and becomes
// another user, as the images of databases do.
func postgres() protocol.Service {
	const bin = "/usr/lib/postgresql/15/bin"
	script := "set -e; d=/var/lib/postgresql/data; " +
		"if ! [ -e $d/PG_VERSION ]; then install -d -o postgres -g postgres -m 700 $d; " +
		"setpriv --reuid=postgres --regid=postgres --init-groups " + bin + "/initdb -D $d -A trust; " +
		"echo 'host all all all trust' >>$d/pg_hba.conf; fi; " +
		"install -d -o postgres -g postgres /run/postgresql; " +
		"exec setpriv --reuid=postgres --regid=postgres --init-groups " + bin + "/postgres -D $d -c listen_addresses='*' -c fsync=off"
	return protocol.Service{Image: "boxfleet/test:postgres", Command: []string{"sh", "-c", script}, Memory: 256 << 20,
		Healthcheck: &protocol.Healthcheck{Test: []string{"CMD", bin + "/pg_isready", "-h", "127.0.0.1"}, Interval: protocol.Duration(time.Second),
			Retries: 40, StartInterval: protocol.Duration(200 * time.Millisecond)}}
}

func redis() protocol.Service {
	return protocol.Service{Image: "boxfleet/test:redis", User: "redis", Memory: 64 << 20,
		Command:     []string{"redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", "/tmp"},
		Healthcheck: &protocol.Healthcheck{Test: []string{"CMD-SHELL", "redis-cli ping | grep -q PONG"}, Interval: protocol.Duration(time.Second), Retries: 20}}
}

func TestPostgreSQLAndRedisAsServices(t *testing.T) {
	t.Parallel()
	image(t, "boxfleet/test:postgres")
	image(t, "boxfleet/test:redis")
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	db := postgres()
	// The hook runs in the primary container: that one has psql too.
	psql := []string{"psql", "-h", "db", "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-Atc"}
	db.PostStart = []protocol.Hook{{Command: append(slices.Clone(psql), "create table t (n int); insert into t values (42)")}}
	spec := withServices(f, services{"db": db, "cache": redis()}, nil)
	spec.Image, spec.User = "boxfleet/test:postgres", "box"
	begun := time.Now()
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(begun).Round(time.Millisecond))
	if got := printedBy(t, ctx, s, "", append(slices.Clone(psql), "select n from t")...); got != "42" {
		t.Errorf("the primary reads %q from the database", got)
	}
	if got := printedBy(t, ctx, s, "db", "sh", "-c", "psql -U postgres -h 127.0.0.1 -Atc 'select n + 1 from t'; stat -c %U /proc/$(head -1 /var/lib/postgresql/data/postmaster.pid); id -un"); got != "43\npostgres\nroot" {
		t.Errorf("an exec in the database's container prints %q", got)
	}
	script := `exec 3<>/dev/tcp/cache/6379; printf 'SET k v\r\nGET k\r\nQUIT\r\n' >&3; cat <&3`
	if got := strings.ReplaceAll(printedBy(t, ctx, s, "", "bash", "-c", script), "\r", ""); got != "+OK\n$1\nv\n+OK" {
		t.Errorf("the primary reads %q from Redis", got)
	}
	// What they hold is there after a stop and a resume.
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if got := printedBy(t, ctx, s, "", append(slices.Clone(psql), "select n from t")...); got != "42" {
		t.Errorf("after a resume the primary reads %q from the database", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// TestAServiceWhoseCommandHasDiedIsNotReadyForItsTest has a test that passes without the command.
func TestAServiceWhoseCommandHasDiedIsNotReadyForItsTest(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	v := small("exit 4")
	v.Healthcheck = &protocol.Healthcheck{Test: []string{"CMD", "true"}}
	_, err := f.Client.Create(f.Context(time.Minute), withServices(f, services{"db": v}, nil), sdk.WithID("s"))
	if err == nil || !strings.Contains(err.Error(), "exit code 4") {
		t.Errorf("the create: %v, want that it fails with exit code 4", err)
	}
	ends := 0
	for _, e := range f.History("s").Events {
		if e.Kind == protocol.ServiceReady {
			t.Errorf("event %d says that the service is ready", e.Sequence)
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
