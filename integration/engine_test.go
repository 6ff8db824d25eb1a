package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// inState waits until a sandbox is in a state and returns it.
func inState(f *fleet.Fleet, id string, state protocol.SandboxState, within time.Duration) protocol.Sandbox {
	f.TB.Helper()
	var info protocol.Sandbox
	f.Eventually(within, id+" becomes "+string(state), func() error {
		s, err := f.Client.Get(f.Context(5*time.Second), id)
		if err != nil {
			return err
		}
		if info = s.Info(); info.State != state {
			return fmt.Errorf("it is %s, %s", info.State, info.Reason)
		}
		return nil
	})
	return info
}

// running waits until an exec is running.
func running(f *fleet.Fleet, s *sdk.Sandbox, id string) {
	f.TB.Helper()
	f.Eventually(10*time.Second, "the exec runs", func() error {
		x, err := s.GetExec(f.Context(5*time.Second), id)
		if err == nil && x.Info().State != protocol.ExecStateRunning {
			err = fmt.Errorf("it is %s", x.Info().State)
		}
		return err
	})
}

// printed waits for the first output of an exec. From then on its command runs.
func printed(t *testing.T, ctx context.Context, x *sdk.Exec) {
	t.Helper()
	for _, err := range x.Output(ctx, sdk.WithFollow(true)) {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("exec %s ended without output", x.ID())
}

// docker runs the docker command, as a user of the host would.
func docker(t *testing.T, host string, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", append([]string{"-H", host}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func names(t *testing.T, host string) string {
	return docker(t, host, "ps", "-a", "--format", "{{.Names}}") + "\n" + docker(t, host, "network", "ls", "--format",
		"{{.Name}}")
}

// containerOf returns the id of a sandbox's container.
func containerOf(f *fleet.Fleet, host, id string) string {
	f.TB.Helper()
	for _, o := range f.Objects(host) {
		if name, ok := strings.CutPrefix(o, "container "); ok && strings.HasSuffix(name, "."+id) {
			return name
		}
	}
	f.TB.Fatalf("sandbox %s has no container", id)
	return ""
}

// TestTheEngineIsStoppedAndStartedUnderAWorker stops the Docker Engine, which ends all containers. The sandboxes become
// ready again by themselves. The interrupted execs end, and no exec gets an exit code that its command did not return.
func TestTheEngineIsStoppedAndStartedUnderAWorker(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "restarts")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host})
	idle, busy := f.Create("idle"), f.Create("busy")
	ctx := f.Context(2 * time.Minute)
	x, err := busy.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "echo before; sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	printed(t, ctx, x)

	e.Stop()
	f.Eventually(20*time.Second, "the host is listed as unhealthy", unhealthy(f))
	if s, err := f.Client.Get(ctx, "idle"); err != nil || s.Info().State != protocol.StateReady {
		t.Errorf("while the engine is away the sandbox is %+v, %v", s, err)
	}
	during := begin(func() error {
		_, err := idle.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}})
		return err
	})
	e.Restart()
	started := time.Now()
	if err := doneWithin(t, started, "an exec that waited for the engine", during); err != nil {
		t.Errorf("an exec that waited for the engine: %v", err)
	}
	for _, s := range []*sdk.Sandbox{idle, busy} {
		if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}}); err != nil {
			t.Errorf("exec in %s after the engine's restart: %v", s.ID(), err)
		}
		onlyOnce(t, f, s.ID(), protocol.SandboxRestarted)
	}
	r, err := x.Wait(ctx)
	if r == nil {
		t.Fatalf("the interrupted exec: %+v, %v", r, err)
	}
	// When the daemon stops, the supervisor ends the exec with a signal and records its exit code. If the supervisor had
	// too little time, the exit code is unknown.
	if code := r.ExitCode; r.State != protocol.ExecStateFailed || r.Reason != protocol.ReasonInterrupted ||
		code != nil && *code != 128+15 && *code != 128+9 {
		t.Errorf("the interrupted exec is %+v", r)
	}
	if string(r.Stdout) != "before\n" {
		t.Errorf("its output is %q", r.Stdout)
	}
	t.Logf("the interrupted exec: %s, reason %q, exit code known: %v", r.State, r.Reason, r.ExitCode != nil)

	// Now the daemon is killed. The next daemon ends the containers that are still running.
	y, err := busy.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "echo before; sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	printed(t, ctx, y)
	e.Kill()
	e.Restart()
	r, err = y.Wait(ctx)
	if r == nil || r.State != protocol.ExecStateFailed || r.Reason != protocol.ReasonInterrupted ||
		string(r.Stdout) != "before\n" {
		t.Errorf("the exec interrupted when the engine was killed: %+v, %v", r, err)
	}
	for _, s := range []*sdk.Sandbox{idle, busy} {
		f.Eventually(adoptedWithin, "the sandboxes are ready again", func() error {
			n := 0
			for _, k := range f.History(s.ID()).Kinds() {
				if k == protocol.SandboxRestarted {
					n++
				}
			}
			if n != 2 {
				return fmt.Errorf("%s was restarted %d times", s.ID(), n)
			}
			return nil
		})
		if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}}); err != nil {
			t.Errorf("exec in %s after the engine was killed: %v", s.ID(), err)
		}
	}
	for _, s := range []*sdk.Sandbox{idle, busy} {
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, f, w)
	f.Judge()
}

// unhealthy returns a check: the fleet lists one host, and the engine of that host does not answer.
func unhealthy(f *fleet.Fleet) func() error {
	return func() error {
		hosts, err := sdk.ReadAll(f.Operator.Hosts().List(f.Context(2 * time.Second)))
		switch {
		case err != nil:
			return err
		case len(hosts) != 1:
			return fmt.Errorf("%d hosts", len(hosts))
		case hosts[0].State != protocol.HostUnhealthy || hosts[0].Problem == "":
			return fmt.Errorf("it is %s, problem %q", hosts[0].State, hosts[0].Problem)
		}
		return nil
	}
}

// TestAnEngineMayRestartEmpty restarts an engine that has lost its images, its containers, and the volume that has its
// host id.
func TestAnEngineMayRestartEmpty(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "emptied")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	// The restarted engine has lost a network whose bridge still exists. The worker removes that bridge.
	f.Worker("w1", fleet.Role{Engine: e.Host, Reconcile: time.Second})
	ctx := f.Context(time.Minute)
	s := f.Create("lost")
	host := s.Info().HostID
	e.Empty()
	e.Restart()
	engines.LoadImage(t, e, fleet.Image)

	f.Eventually(20*time.Second, "the sandbox fails", func() error {
		if err := s.Refresh(ctx); err != nil || s.Info().State != protocol.StateFailed ||
			s.Info().Reason != protocol.ReasonContainerMissing {
			return fmt.Errorf("it is %s, %s, %v", s.Info().State, s.Info().Reason, err)
		}
		return nil
	})
	if after := f.Create("new").Info().HostID; after != host {
		t.Errorf("the host was %s and is %s", host, after)
	}
	// The engine still belongs to the worker w1, so a second worker on this engine is refused.
	refusedBy(t, f.Worker("w2", fleet.Role{Engine: e.Host, NoWait: true}), 30*time.Second, "w1 (machine ")
	f.Judge()
}

// TestAnEngineMayRestartWithAnotherConfiguration checks that the host reports the new isolation after the restart.
func TestAnEngineMayRestartWithAnotherConfiguration(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "other")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host})
	ctx := f.Context(time.Minute)
	s := f.Create("before")
	runc, err := exec.LookPath("runc")
	check(t, err)
	e.Stop()
	e.Flags = []string{"--add-runtime", "other=" + runc, "--default-runtime", "other"}
	e.Restart()
	f.Eventually(adoptedWithin, "the host reports it", func() error {
		hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
		if err != nil || len(hosts) != 1 || hosts[0].Runtime != "other" {
			return fmt.Errorf("%+v, %v", hosts, err)
		}
		return nil
	})
	if got := f.Create("after").Info().Isolation; got != "other" {
		t.Errorf("the reported isolation of a sandbox is %q", got)
	}
	if got := printedBy(t, ctx, s, "", "echo", "here"); got != "here" || w.Exited() {
		t.Errorf("the earlier sandbox prints %q; the worker has ended: %t", got, w.Exited())
	}
	f.Judge()
}

// TestAnEngineMayRestartAsAnotherHost gives the engine the data of another engine that was a host of this deployment.
func TestAnEngineMayRestartAsAnotherHost(t *testing.T) {
	t.Parallel()
	e, other := engines.Start(t, "here"), engines.Start(t, "there")
	engines.LoadImage(t, other, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w2", fleet.Role{Engine: other.Host})
	ctx := f.Context(time.Minute)
	idOf := func(worker string) (id string) {
		f.Eventually(10*time.Second, worker+" is there", func() error {
			hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
			for _, h := range hosts {
				if h.Worker == worker && h.State == protocol.HostReady {
					id = h.HostID
					return nil
				}
			}
			return fmt.Errorf("%+v, %v", hosts, err)
		})
		return id
	}
	there := idOf("w2")
	w.Stop()
	w = f.Worker("w1", fleet.Role{Engine: e.Host})
	here := idOf("w1")
	e.Stop()
	other.Stop()
	e.Empty()
	check(t, os.Rename(other.Data(), e.Data()))
	other.Restart()
	e.Restart()
	f.Eventually(20*time.Second, "the worker serves the other host", func() error {
		if id := idOf("w1"); id != there {
			return fmt.Errorf("it serves %s, before %s, the other is %s", id, here, there)
		}
		return nil
	})
	if got := f.Create("a").Info().HostID; got != there {
		t.Errorf("a sandbox is on %s", got)
	}
	if w.Exited() {
		t.Error("the worker ended when its engine became another host")
	}
	f.Judge()
}

// TestAHungEngineDelaysNoExec makes the engine hang when the worker is about to inspect a new sandbox.
func TestAHungEngineDelaysNoExec(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "stuck")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host, PauseAt: "after-ready"})
	ctx := f.Context(time.Minute)
	s := f.Create("a")
	w.AwaitPaused(10 * time.Second)
	e.Pause()
	w.Continue()
	bounded, cancel := context.WithTimeout(ctx, 8*time.Second) // calls that wait for the engine take ten seconds
	defer cancel()
	for range 3 {
		if _, err := s.Exec(bounded, protocol.ExecSpec{Command: []string{"true"}}); err != nil {
			t.Errorf("an exec while the engine hangs failed: %v", err)
		}
	}
	x, err := s.Start(bounded, protocol.ExecSpec{Command: []string{"sleep", "1000"}})
	check(t, err)
	check(t, x.Cancel(bounded))
	if r, err := x.Wait(bounded); r == nil || r.State != protocol.ExecStateCancelled {
		t.Errorf("a cancelled exec: %+v, %v", r, err)
	}
	e.Continue()
	check(t, s.Delete(ctx))
	f.Judge()
}

// TestS6_AHungEngineFreezesNoRead pauses the Docker Engine for 25 s. The fleet does not declare any sandbox lost.
func TestS6_AHungEngineFreezesNoRead(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "hangs")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Engine: e.Host})
	ctx := f.Context(2 * time.Minute)
	s := f.Create("a")
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", countUntilTold}})
	if err != nil {
		t.Fatal(err)
	}
	running(f, s, x.ID())
	before := len(f.History("a").Events)

	e.Pause()
	paused := time.Now()
	created := begin(func() error {
		_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("b"))
		return err
	})
	shown, slowest := time.Duration(0), time.Duration(0)
	f.Eventually(40*time.Second, "25 s pass", func() error {
		started := time.Now()
		bounded, cancel := context.WithTimeout(ctx, 9*time.Second)
		defer cancel()
		_, errPing := f.Client.Ping(bounded)
		_, errList := f.Client.ListPage(bounded)
		got, errGet := f.Client.Get(bounded, "a")
		if err := errors.Join(errPing, errList, errGet); err != nil {
			t.Errorf("a read while the engine hangs: %v", err)
		} else if state := got.Info().State; state != protocol.StateReady {
			t.Errorf("the sandbox is %s", state)
		}
		slowest = max(slowest, time.Since(started))
		if shown == 0 && unhealthy(f)() == nil {
			shown = time.Since(paused)
		}
		if left := 25*time.Second - time.Since(paused); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	if slowest > 8*time.Second { // calls that wait for the engine take ten seconds
		t.Errorf("three reads took %s", slowest)
	}
	if shown == 0 || shown > 20*time.Second {
		t.Errorf("the host was shown unhealthy after %s", shown)
	}
	t.Logf("the host was shown unhealthy after %s; the slowest three reads took %s", shown.Round(10*time.Millisecond),
		slowest.Round(time.Millisecond))
	// The supervisor does not depend on the engine: execs keep working.
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}}); err != nil {
		t.Errorf("an exec while the engine hangs: %v", err)
	}

	e.Continue()
	if err := <-created; err != nil {
		t.Errorf("the sandbox created while the engine hung: %v", err)
	}
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"touch", "/tmp/enough"}}); err != nil {
		t.Error(err)
	}
	r, err := x.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	exitsWith(t, r, 9)
	for _, event := range f.History("a").Events[before:] {
		if event.Exec == nil {
			t.Errorf("the sandbox has an unexpected event: %s, %s", event.Kind, event.Reason)
		}
	}
	f.Eventually(20*time.Second, "the host is healthy again", func() error {
		if err := unhealthy(f)(); err == nil {
			return errors.New("it is not healthy")
		}
		return nil
	})
	f.Judge()
}

// TestChangesMadeDirectlyOnTheEngineAreNoticed removes and kills containers with the docker command. It also creates
// foreign objects and orphans on the engine.
func TestChangesMadeDirectlyOnTheEngineAreNoticed(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	host := engines.Default(t).Host
	w := f.Worker("w1", fleet.Role{Reconcile: 2 * time.Second})
	ctx := f.Context(2 * time.Minute)
	removed, killed, kept := f.Create("removed"), f.Create("killed"), f.Create("kept")

	x, err := removed.Start(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	running(f, removed, x.ID())
	w.Pause() // the worker must not see the end of the container before the removal
	docker(t, host, "rm", "-f", containerOf(f, host, "removed"))
	w.Continue()
	if b := inState(f, "removed", protocol.StateFailed, 10*time.Second); b.Reason != protocol.ReasonContainerMissing {
		t.Errorf("removed: reason %q", b.Reason)
	}
	if r, _ := x.Wait(ctx); r == nil || r.State != protocol.ExecStateFailed || r.Reason != protocol.ReasonInterrupted ||
		r.ExitCode != nil {
		t.Errorf("the exec in the removed container: %+v", r)
	}
	docker(t, host, "kill", containerOf(f, host, "killed"))
	if b := inState(f, "killed", protocol.StateFailed, 10*time.Second); b.Reason != protocol.ReasonContainerExited {
		t.Errorf("killed: reason %q", b.Reason)
	}
	for _, s := range []*sdk.Sandbox{removed, killed} {
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Run("Foreign", func(t *testing.T) { foreignObjectsAreNotTouched(t, f, host, kept) })
	t.Run("Orphans", func(t *testing.T) { orphansAreRemoved(t, f, host, kept) })
	if err := kept.Delete(ctx); err != nil {
		t.Error(err)
	}
	f.Judge()
}

// foreignObjectsAreNotTouched creates three kinds of foreign objects on the engine: with another deployment's labels,
// without labels, and with a name of this deployment.
func foreignObjectsAreNotTouched(t *testing.T, f *fleet.Fleet, host string, kept *sdk.Sandbox) {
	prefix := "foreign-" + f.Conn.Deployment()
	labels := [][]string{
		{},
		{"--label", "boxfleet.deployment=another", "--label", "boxfleet.tenant=default", "--label",
			"boxfleet.sandbox=removed", "--label", "boxfleet.generation=1"},
		{"--label", "boxfleet.tenant=default", "--label", "boxfleet.sandbox=removed"},
	}
	var made []string
	defer func() {
		for _, name := range made {
			docker(t, host, "rm", "-f", name)
			docker(t, host, "network", "rm", name)
		}
	}()
	for i, l := range labels {
		for _, name := range []string{fmt.Sprintf("%s-%d", prefix, i),
			fmt.Sprintf("boxfleet.%s.default.alike%d", f.Conn.Deployment(), i)} {
			docker(t, host, append(append([]string{"network", "create", "--subnet", fmt.Sprintf("10.231.%d.%d/28", i,
				16*len(made))}, l...), name)...)
			docker(t, host, append(append([]string{"create", "--name", name}, l...), fleet.Image, "true")...)
			made = append(made, name)
		}
	}
	// A foreign container has the name of the sandbox's container. The sandbox does not take over that container.
	conflict, err := f.Client.Create(f.Context(time.Minute), f.Spec(), sdk.WithID("alike0"))
	if err == nil {
		t.Error("a sandbox was created although a foreign container has its name")
	} else {
		t.Logf("the create with a foreign container in the way: %v", err)
	}
	if conflict == nil || conflict.Info().State != protocol.StateFailed {
		t.Fatalf("the sandbox is %+v", conflict)
	}
	if err := conflict.Delete(f.Context(10 * time.Second)); err != nil {
		t.Error(err)
	}
	reconciledTwice(t, f, host)
	all := names(t, host)
	for _, name := range made {
		if strings.Count(all, name) != 2 {
			t.Errorf("a container or a network of %s was removed", name)
		}
	}
}

// reconciledTwice waits until the worker has inspected the whole engine again. It creates an orphan and waits until the
// worker has removed the orphan.
func reconciledTwice(t *testing.T, f *fleet.Fleet, host string) {
	t.Helper()
	for i := range 2 {
		name := fmt.Sprintf("marker-%d-%d", i, time.Now().UnixNano())
		docker(t, host, append([]string{"create", "--name", name},
			append(orphanLabels(f, "removed", "1"), fleet.Image, "true")...)...)
		gone(t, f, host, name)
	}
}

func orphanLabels(f *fleet.Fleet, id, generation string) []string {
	var args []string
	for k, v := range map[string]string{
		"boxfleet.deployment": f.Conn.Deployment(), "boxfleet.tenant": protocol.DefaultTenant, "boxfleet.sandbox": id,
		"boxfleet.generation": generation, "boxfleet.role": "primary",
	} {
		args = append(args, "--label", k+"="+v)
	}
	return args
}

func gone(t *testing.T, f *fleet.Fleet, host, name string) {
	t.Helper()
	f.Eventually(30*time.Second, name+" is gone", func() error {
		if strings.Contains(names(t, host), name) {
			return errors.New("it is still there")
		}
		return nil
	})
}

// orphansAreRemoved creates objects with this deployment's labels on the engine. According to the log, the sandboxes of
// these objects have ended.
func orphansAreRemoved(t *testing.T, f *fleet.Fleet, host string, kept *sdk.Sandbox) {
	name := func(id string) string { return "boxfleet." + f.Conn.Deployment() + ".default." + id }
	started := time.Now()
	// This object belongs to a deleted sandbox.
	docker(t, host, append([]string{"network", "create", "--subnet", "10.231.99.0/28"},
		append(orphanLabels(f, "removed", "1"), name("removed"))...)...)
	docker(t, host, append([]string{"create", "--name", name("removed"), "--network", name("removed")},
		append(orphanLabels(f, "removed", "1"), fleet.Image, "true")...)...)
	// This network is the only object of a deleted sandbox.
	docker(t, host, append([]string{"network", "create", "--subnet", "10.231.99.16/28"},
		append(orphanLabels(f, "killed", "1"), name("killed"))...)...)
	// This object belongs to an old generation of a living sandbox.
	old := name("kept") + ".old"
	docker(t, host, append([]string{"create", "--name", old},
		append(orphanLabels(f, "kept", "0"), fleet.Image, "true")...)...)
	gone(t, f, host, name("removed"))
	gone(t, f, host, name("killed"))
	gone(t, f, host, old)
	t.Logf("orphans were removed after %s with an inspection every 2 s", time.Since(started).Round(10*time.Millisecond))
	if _, err := kept.Exec(f.Context(10*time.Second), protocol.ExecSpec{Command: []string{"true"}}); err != nil {
		t.Errorf("the sandbox that is in use: %v", err)
	}
	// An object of a sandbox that is not in the log may belong to somebody else, so it stays.
	unknown := name("never-was")
	docker(t, host, append([]string{"create", "--name", unknown},
		append(orphanLabels(f, "never-was", "1"), fleet.Image, "true")...)...)
	defer docker(t, host, "rm", "-f", unknown)
	reconciledTwice(t, f, host)
	if !strings.Contains(names(t, host), unknown) {
		t.Error("the worker removed a container of a sandbox that is not in the log")
	}
}
