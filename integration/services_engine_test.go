package integration

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestServicesComeBackWithTheEngine first stops and later kills the Docker Engine.
func TestServicesComeBackWithTheEngine(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "services")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host})
	ctx := f.Context(2 * time.Minute)
	s, err := f.Client.Create(ctx, withServices(f, services{"web": web("0.1")},
		services{"opt": small("exec sleep 1000")}), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	stopped, err := f.Client.Create(ctx, withServices(f, services{"web": web("0.1")}, nil), sdk.WithID("stopped"))
	if err != nil {
		t.Fatal(err)
	}
	if err := stopped.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct {
		name string
		end  func()
	}{{"killed", e.Kill}, {"stopped", e.Stop}} {
		x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}, Service: "web"})
		if err != nil {
			t.Fatal(err)
		}
		f.Eventually(5*time.Second, "it runs", func() error {
			if x, err := s.GetExec(ctx, x.ID()); err != nil || x.Info().State != protocol.ExecStateRunning {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
		way.end()
		e.Restart()
		restarted := time.Now()
		f.Eventually(2*adoptedWithin, "the service answers", func() error {
			r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"wget", "-q", "-O", "-", "http://web/"},
				Timeout: protocol.Duration(5 * time.Second)})
			if r == nil || string(r.Stdout) != "hello\n" {
				time.Sleep(200 * time.Millisecond) // keeps the number of failed execs in the history small
				return fmt.Errorf("%+v, %v", r, err)
			}
			return nil
		})
		t.Logf("the engine was %s: the service answered after %s", way.name,
			time.Since(restarted).Round(time.Millisecond))
		if r, err := x.Wait(ctx); r == nil || r.State != protocol.ExecStateFailed ||
			r.Reason != protocol.ReasonInterrupted {
			t.Errorf("the interrupted exec: %+v, %v", r, err)
		}
	}
	f.Eventually(adoptedWithin, "everything that should run is running", func() error {
		if running := docker(t, e.Host, "ps", "--format", "{{.Names}}"); strings.Count(running, "\n") != 2 {
			return fmt.Errorf("running: %q", running)
		}
		return nil
	})
	if running := docker(t, e.Host, "ps", "--format", "{{.Names}}"); strings.Contains(running, "stopped") {
		t.Errorf("running in the end: %q", running)
	}
	for _, s := range []*sdk.Sandbox{s, stopped} {
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, f, w)
	f.Judge()
}

// letGo creates a file in a service of a sandbox. It uses the docker command, because the sandbox is not ready yet and
// accepts no execs.
func letGo(f *fleet.Fleet, host, id, service, file string) {
	f.TB.Helper()
	f.Eventually(time.Minute, service+" is released", func() error {
		out, err := exec.Command("docker", "-H", host, "exec",
			"boxfleet."+f.Conn.Deployment()+".default."+id+"."+service, "touch", file).CombinedOutput()
		if err != nil {
			time.Sleep(200 * time.Millisecond) // limits the load on an engine that is starting
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// TestRunningSandboxesRestartWithTheirHost restarts the machine of a worker and an engine: processes, bridges and rules
// disappear, and files on disk remain.
func TestRunningSandboxesRestartWithTheirHost(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "host")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host})
	ctx := f.Context(2 * time.Minute)
	s, err := f.Client.Create(ctx, withServices(f, services{"web": web("0.1")}, nil), sdk.WithID("s"))
	check(t, err)
	stopped := f.Create("stopped")
	check(t, stopped.Stop(ctx))
	printedBy(t, ctx, s, "", "touch", "/tmp/kept")
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}})
	check(t, err)
	running(f, s, x.ID())
	w.Kill()
	e.PowerCycle()
	e.Restart()
	w = w.Restart()

	f.Eventually(2*adoptedWithin, "the service answers", func() error {
		r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"wget", "-q", "-O", "-", "http://web/"},
			Timeout: protocol.Duration(5 * time.Second)})
		if r == nil || string(r.Stdout) != "hello\n" {
			return fmt.Errorf("%+v, %v", r, err)
		}
		return nil
	})
	if got := printedBy(t, ctx, s, "", "ls", "/tmp"); got != "kept" {
		t.Errorf("its files are %q", got)
	}
	if r, err := x.Wait(ctx); r == nil || r.Reason != protocol.ReasonInterrupted {
		t.Errorf("the interrupted exec: %+v, %v", r, err)
	}
	if err := stopped.Refresh(ctx); err != nil || stopped.Info().State != protocol.StateStopped {
		t.Errorf("the stopped sandbox is %s, %v", stopped.Info().State, err)
	}
	if names := docker(t, e.Host, "ps", "--format", "{{.Names}}"); strings.Contains(names, "stopped") {
		t.Errorf("running in the end: %q", names)
	}
	if rules, err := exec.Command("nsenter", "--net=/run/netns/"+e.Namespace(), "nft", "list",
		"ruleset").CombinedOutput(); err != nil || !strings.Contains(string(rules), "chain bxf-") {
		t.Errorf("no rules: %s, %v", rules, err)
	}
	check(t, s.Delete(ctx))
	check(t, stopped.Delete(ctx))
	nothingLeft(t, f, w)
	f.Judge()
}

// TestServicesStartFreshOnAnotherHost kills a worker while one of two required services is ready. The next
// host has nothing of the two services.
func TestServicesStartFreshOnAnotherHost(t *testing.T) {
	t.Parallel()
	other := engines.Start(t, "another")
	engines.LoadImage(t, other, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1, LockTTL: 10 * time.Second,
		Timing: coordinator.Timing{Suspect: time.Second, Seize: 500 * time.Millisecond}})
	w1 := f.Worker("w1", fleet.Role{})
	ctx := f.Context(2 * time.Minute)
	talker := small("echo up; while ! [ -e /tmp/more ]; do sleep 0.1; done; echo more; exec sleep 1000")
	talker.PostStart = []protocol.Hook{hook("echo x >>/tmp/hook")}
	s, err := f.Client.Create(ctx, withServices(f, services{"talker": talker, "slow": webWhenTold("/tmp/go")}, nil),
		sdk.WithID("s"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	printed := func() (all string) {
		t.Helper()
		var end int64
		for k, err := range s.Logs(ctx, sdk.WithService("talker")) {
			if err != nil {
				t.Fatal(err)
			}
			if k.Offset != end {
				t.Errorf("after %d bytes the output goes on at %d", end, k.Offset)
			}
			end = k.Offset + int64(len(k.Data))
			all += string(k.Data)
		}
		return all
	}
	prints := func(want string) {
		t.Helper()
		f.Eventually(10*time.Second, "the service's output is stored", func() error {
			if got := printed(); got != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	f.Eventually(10*time.Second, "one service is ready",
		func() error { return serviceIs(f, "s", "talker", protocol.ServiceStateReady) })
	prints("up\n")
	w1.Kill()

	w2 := f.Worker("w2", fleet.Role{Engine: other.Host})
	letGo(f, other.Host, "s", "slow", "/tmp/go")
	onHost(ctx, t, s, "w2")
	if got := printedBy(t, ctx, s, "talker", "cat", "/etc/hostname"); got != "talker" {
		t.Errorf("its host's name is %q", got)
	}
	if got := printedBy(t, ctx, s, "", "cat", "/tmp/hook"); got != "x" {
		t.Errorf("its hook left %q", got)
	}
	prints("up\nup\n")
	w2.Kill()
	w2 = w2.Restart()
	printedBy(t, ctx, s, "talker", "touch", "/tmp/more")
	prints("up\nup\nmore\n")

	w1 = w1.Restart()
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w2)
	becomesEmpty(f, w1)
	f.Judge()
}

// TestASandboxMayHaveAsManyServicesAsAreAllowed uses the maximum number of services. Each service gets an address on
// the network, even if all services restart at once in any order.
func TestASandboxMayHaveAsManyServicesAsAreAllowed(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "many")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host})
	ctx := f.Context(5 * time.Minute)
	required, optional := services{}, services{}
	for i := range protocol.MaxServices {
		group := []services{required, optional}[i%2]
		group[fmt.Sprint("s", i)] = small("exec sleep 1000")
	}
	s, err := f.Client.Create(ctx, withServices(f, required, optional), sdk.WithID("s"))
	check(t, err)
	allThere := func(when string) {
		t.Helper()
		f.Eventually(time.Minute, when+" all have an address", func() error { // thirteen containers start
			found := map[string]bool{}
			for _, id := range strings.Fields(docker(t, e.Host, "ps", "--quiet")) {
				found[docker(t, e.Host, "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}",
					id)] = true
			}
			if delete(found, ""); len(found) != protocol.MaxServices+1 {
				return fmt.Errorf("there are %d addresses", len(found))
			}
			return nil
		})
		for name := range optional {
			f.Eventually(adoptedWithin, name+" is ready",
				func() error { return serviceIs(f, "s", name, protocol.ServiceStateReady) })
		}
	}
	allThere("after the create")
	check(t, s.Stop(ctx))
	check(t, s.Resume(ctx))
	allThere("after a resume")
	e.Kill()
	e.Restart()
	allThere("after the engine was killed")
	check(t, s.Delete(ctx))
	nothingLeft(t, f, w)
	f.Judge()
}

// TestTheEngineIsRestartedWhileServicesStart restarts the engine during a create and during a resume.
func TestTheEngineIsRestartedWhileServicesStart(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "starting")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host})
	ctx := f.Context(3 * time.Minute)
	s, err := f.Client.Create(ctx, withServices(f,
		services{"quick": small("exec sleep 1000"),
			"slow": webWhenTold("/tmp/go")}, nil), sdk.WithID("s"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	comesUp := func(what string) {
		t.Helper()
		f.Eventually(20*time.Second, "one service is ready and the other is starting", func() error {
			if running := docker(t, e.Host, "ps", "-q"); strings.Count(running, "\n") != 2 {
				return fmt.Errorf("running: %q", running)
			}
			return serviceIs(f, "s", "quick", protocol.ServiceStateReady)
		})
		if b := f.History("s").State.Sandbox; b.State != protocol.StatePending {
			t.Fatalf("%s: the sandbox is already %s", what, b.State)
		}
		e.Restart()
		restarted := time.Now()
		letGo(f, e.Host, "s", "slow", "/tmp/go")
		bounded, cancel := context.WithTimeout(ctx, 40*time.Second)
		defer cancel()
		if err := s.WaitReady(bounded); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		t.Logf("%s: ready %s after the engine's restart", what, time.Since(restarted).Round(time.Millisecond))
		if got := printedBy(t, ctx, s, "", "wget", "-q", "-O", "-", "http://slow/"); got != "hello" {
			t.Errorf("%s: the service prints %q", what, got)
		}
	}
	comesUp("create")
	printedBy(t, ctx, s, "slow", "rm", "/tmp/go")
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(ctx, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	comesUp("resume")
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}
