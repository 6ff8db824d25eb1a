package integration

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestAHookRunsBeforeTheDelete deletes sandboxes with on_delete commands that succeed, fail, hang or cannot run. It
// also deletes a stopped sandbox.
func TestAHookRunsBeforeTheDelete(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	create := func(id string, timeout time.Duration, command ...string) *sdk.Sandbox {
		t.Helper()
		spec := f.Spec()
		spec.User = "1000"
		spec.OnDelete = &protocol.Hook{Command: command, Timeout: protocol.Duration(timeout)}
		s, err := f.Client.Create(ctx, spec, sdk.WithID(id))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for id, c := range map[string]struct {
		timeout time.Duration
		command []string
		code    protocol.Code // error code
		exit    string
		output  string
		became  string
	}{
		"done": {0, []string{"sh", "-c", "cat /tmp/left; id -u"}, "", "0", "by an exec\n1000\n", protocol.HookDone},
		"fails": {0, []string{"sh", "-c", "echo no >&2; exit 3"}, protocol.FailedPrecondition, "3", "no\n",
			protocol.HookFailed},
		"hangs": {3 * time.Second, []string{"sh", "-c", "echo here; sleep 600"}, protocol.DeadlineExceeded, "137",
			"here\n", protocol.HookFailed},
		"missing": {0, []string{"no-such-program"}, protocol.FailedPrecondition, "127", "not found",
			protocol.HookFailed},
	} {
		s := create(id, c.timeout, c.command...)
		mustExec(ctx, t, s, script("echo by an exec > /tmp/left"))
		x, err := s.Start(ctx, script("sleep 600"))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := s.Delete(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > c.timeout+10*time.Second {
			t.Errorf("%s: the delete took %s", id, took)
		}
		e := find(t, history(ctx, t, f.Client, id), protocol.SandboxHook)
		got := ""
		if e.Details.ExitCode != nil {
			got = code(&sdk.Result{ExitCode: e.Details.ExitCode})
		}
		if (c.exit != "137" && got != c.exit) || !strings.Contains(string(e.Details.Output), c.output) {
			t.Errorf("%s: exit code %s, output %q", id, got, e.Details.Output)
		}
		if c.code == "" && e.Error != nil || c.code != "" &&
			(e.Error == nil || e.Error.Code != c.code || e.Reason != protocol.ReasonHookFailed) {
			t.Errorf("%s: %v", id, e.Error)
		}
		if r, err := x.Wait(ctx); protocol.CodeOf(err) != protocol.Cancelled || r.Ended.Before(e.Time) {
			t.Errorf("%s: the exec ended at %s, the hook at %s, %v", id, r.Ended, e.Time, err)
		}
		if i := s.Info(); i.OnDelete != c.became {
			t.Errorf("%s: read back %q", id, i.OnDelete)
		}
	}
	stopped := create("stopped", 0, "echo", "bye")
	if err := stopped.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if n := count(history(ctx, t, f.Client, "stopped"), protocol.SandboxHook); n != 0 {
		t.Errorf("a stopped sandbox had %d hooks run", n)
	}
	f.Judge()
}

// TestAHookRunsOnceAlsoWhenTheWorkerDies kills the worker while the on_delete command runs.
func TestAHookRunsOnceAlsoWhenTheWorkerDies(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.OnDelete = &protocol.Hook{Command: []string{"sh", "-c",
		"echo x >> /tmp/runs; while [ ! -e /tmp/dead ]; do usleep 50000; done; cat /tmp/runs"}}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("once"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	f.Eventually(10*time.Second, "the command runs", func() error {
		out, err := exec.Command("docker", "top", s.Info().Container, "-o", "pid,args").CombinedOutput()
		if err == nil && !strings.Contains(string(out), "/tmp/dead") {
			err = errors.New(string(out))
		}
		return err
	})
	w := f.Processes("worker")[0]
	w.Kill()
	if out, err := exec.Command("docker", "exec", s.Info().Container, "touch",
		"/tmp/dead").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.Restart()
	if err := s.WaitDeleted(ctx); err != nil {
		t.Fatal(err)
	}
	events := history(ctx, t, f.Client, "once")
	e := find(t, events, protocol.SandboxHook)
	if n := count(events, protocol.SandboxHook); n != 1 || string(e.Details.Output) != "x\n" || e.Error != nil {
		t.Errorf("%d hooks ended, the last printed %q, %v", n, e.Details.Output, e.Error)
	}
	if left := f.Objects(""); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	f.Judge()
}
