package integration

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func TestRequiredServicesGateReadyAndAreReachedByName(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	begun := time.Now()
	s, err := f.Client.Create(ctx, withServices(f,
		services{"web": web("1"), "other": web("1"), "third": small("exec sleep 1000")}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	t.Logf("the sandbox was ready after %s", took.Round(time.Millisecond))
	if took < time.Second {
		t.Errorf("ready after %s, before its services can be", took)
	}
	h := f.History("s")
	kinds := h.Kinds()
	if n := slices.Index(kinds, protocol.SandboxReady); n < 0 || slices.Index(kinds[n:], protocol.ServiceReady) >= 0 ||
		slices.Index(kinds, protocol.ServiceReady) < 0 {
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

func TestAnOptionalServiceBlocksNothing(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	late := webWhenTold("/tmp/go")
	late.PostStart = []protocol.Hook{hook("echo hooked >/tmp/hooked")}
	s, err := f.Client.Create(ctx, withServices(f, nil,
		services{"late": late, "bad": neverReady(small("echo broken; exit 5")),
			"none": {Image: "127.0.0.1:9/none:1"}}), sdk.WithID("s"))
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
		if late.State != protocol.ServiceStateReady || bad.State != protocol.ServiceStateFailed ||
			none.State != protocol.ServiceStateFailed {
			return fmt.Errorf("%+v, %+v, %+v", late, bad, none)
		}
		if bad.Reason != protocol.ReasonContainerExited || bad.Error == nil ||
			!strings.Contains(bad.Error.Message, "broken") {
			return fmt.Errorf("the reason is %s, %v", bad.Reason, bad.Error)
		}
		return nil
	})
	if got := printedBy(t, ctx, s, "", "sh", "-c",
		"wget -q -O - http://late/; cat /tmp/hooked"); got != "hello\nhooked" {
		t.Errorf("got %q", got)
	}
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"},
		Service: "none"}); protocol.AsError(err).Reason != protocol.ReasonServiceDown {
		t.Errorf("an exec in a service that has no container: %v", err)
	}
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"},
		Service: "unknown"}); protocol.CodeOf(err) != protocol.InvalidArgument ||
		protocol.AsError(err).Field != "spec.service" {
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
		if got := serviceEvents(f.History("s"), "opt"); !slices.Equal(got,
			[]string{"service.hook hook_failed", "service.failed hook_failed"}) {
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
		if e.Service.Name == "opt" &&
			(*e.Service.ExitCode != 9 || !strings.Contains(string(e.Service.Output), "no migration")) {
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
	if got := serviceEvents(f.History("s"), "web"); !slices.Equal(got,
		[]string{"service.hook", "service.hook", "service.ready", "service.hook", "service.ready"}) {
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

// dockerRunning lists the fleet's running containers.
func dockerRunning(f *fleet.Fleet) ([]string, error) {
	out, err := exec.Command("docker", "ps", "--format", "{{.Names}}", "--filter",
		"label=boxfleet.deployment="+f.Conn.Deployment()).Output()
	return strings.Fields(string(out)), err
}

func TestExecsAndLogsOfAService(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	talker := small("echo first; echo oops >&2; while ! [ -e /tmp/go ]; do sleep 0.1; done; echo second; head -c " +
		"3000000 /dev/zero; echo; echo last; exec sleep 1000")
	talker.Env, talker.User = map[string]string{"WHO": "service"}, "box"
	s, err := f.Client.Create(ctx, withServices(f, services{"talker": talker}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	if got := printedBy(t, ctx, s, "talker", "sh", "-c", "echo $WHO; id -un; hostname"); got != "service\nbox\ntalker" {
		t.Errorf("an exec in the service prints %q", got)
	}
	slow, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}, Service: "talker",
		Timeout: protocol.Duration(300 * time.Millisecond)})
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
	if total := int64(len("first\nsecond\n") + 3_000_000 + len("\nlast\n")); gaps != total ||
		stderr.String() != "oops\n" {
		t.Errorf("the output ends at %d of %d, stderr is %q", gaps, total, stderr.String())
	}
	t.Logf("%d of %d bytes of the service's output were kept", stdout.Len(), gaps)
	for _, err := range s.Logs(ctx, sdk.WithService("nobody")) {
		if protocol.CodeOf(err) != protocol.InvalidArgument {
			t.Errorf("the output of an unknown service: %v", err)
		}
	}
	// When the sandbox stops, an exec in a service ends, and the end of the exec is recorded.
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
	if got, err := s.GetExec(ctx, x.ID()); err != nil || got.Info().State != protocol.ExecStateCancelled ||
		got.Info().Reason != protocol.ReasonSandboxStopped {
		t.Errorf("the exec is %+v, %v", got.Info(), err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// TestAWorkerKilledWhileItBringsServicesUp kills a worker at each step of the start of a service, and then during a
// stop and during a delete. After each kill the restarted worker continues from that step.
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
		"before-service-create", "after-service-create", "after-service-copy", "before-service-start",
		"after-service-start", "after-service-hello",
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
			if got := printedBy(t, ctx, s, "", "sh", "-c",
				"wget -q -O - http://web/; cat /tmp/hooks"); got != "hello\nx" {
				t.Errorf("the primary reads %q", got)
			}
			if got := printedBy(t, ctx, s, "web", "cat", "/tree/f"); got != "copied" {
				t.Errorf("the service's copy contains %q", got)
			}
			x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c",
				"trap 'exit 3' TERM; echo going; while :; do sleep 0.1; done"}, Service: "web"})
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
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c",
		"until [ -e /tmp/go ]; do sleep 0.05; done; cat /proc/1/comm; exit 6"}, Service: "web"})
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

func TestPostgreSQLAndRedisAsServices(t *testing.T) {
	t.Parallel()
	image(t, debianImage)
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	db := postgres()
	// The hook runs in the primary container, which also has psql.
	psql := []string{"psql", "-h", "db", "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-Atc"}
	db.PostStart = []protocol.Hook{{Command: append(slices.Clone(psql),
		"create table t (n int); insert into t values (42)")}}
	spec := withServices(f, services{"db": db, "cache": redis()}, nil)
	spec.Image, spec.User = debianImage, "box"
	begun := time.Now()
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the sandbox was ready after %s", time.Since(begun).Round(time.Millisecond))
	if got := printedBy(t, ctx, s, "", append(slices.Clone(psql), "select n from t")...); got != "42" {
		t.Errorf("the primary reads %q from the database", got)
	}
	if got := printedBy(t, ctx, s, "db", "sh", "-c",
		"psql -U postgres -h 127.0.0.1 -Atc 'select n + 1 from t'; stat -c %U /proc/$(head -1 "+
			"/var/lib/postgresql/data/postmaster.pid); id -un"); got != "43\npostgres\nroot" {
		t.Errorf("an exec in the database's container prints %q", got)
	}
	if got := postgresQuery(ctx, t, s, "db", "select n from t"); got != "42" {
		t.Errorf("over a connection of the client, the database answers %q", got)
	}
	script := `exec 3<>/dev/tcp/cache/6379; printf 'SET k v\r\nGET k\r\nQUIT\r\n' >&3; cat <&3`
	if got := strings.ReplaceAll(printedBy(t, ctx, s, "", "bash", "-c", script), "\r", ""); got != "+OK\n$1\nv\n+OK" {
		t.Errorf("the primary reads %q from Redis", got)
	}
	// The data is still there after a stop and a resume.
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
