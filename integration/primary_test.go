package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// primaryEvents lists the starts and ends of a sandbox's primary command as one word each: "started/1" is the start
// after the first restart, "ended/1:3" is the end of that run with exit code 3.
func primaryEvents(h *fleet.History) []string {
	var seen []string
	for _, e := range h.Events {
		if e.Primary == nil {
			continue
		}
		word := fmt.Sprintf("%s/%d", strings.TrimPrefix(string(e.Kind), "primary."), e.Primary.Restarts)
		if e.Primary.ExitCode != nil {
			word += fmt.Sprintf(":%d", *e.Primary.ExitCode)
		}
		seen = append(seen, word)
	}
	return seen
}

// ownOutput returns all output of a sandbox's primary command.
func ownOutput(t *testing.T, f *fleet.Fleet, s *sdk.Sandbox) string {
	t.Helper()
	var text strings.Builder
	for k, err := range s.Logs(f.Context(10 * time.Second)) {
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(k.Stream + ":" + string(k.Data))
	}
	return text.String()
}

func TestACreateWhoseCommandEndsAtOnceFailsAndSaysSo(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: 1})
	ctx := f.Context(2 * time.Minute)
	cases := map[string]struct {
		change         func(*protocol.SandboxSpec)
		reason, field  string
		says           string
		events, output string
	}{
		"missing": {func(s *protocol.SandboxSpec) { s.Command = []string{"nosuchcmd"} },
			protocol.ReasonStartFailed, "spec.command", "exit code 127", "[ended/0:127]", ""},
		"no-program": {func(s *protocol.SandboxSpec) { s.Command = []string{"/etc/passwd"} },
			protocol.ReasonStartFailed, "spec.command", "exit code 126", "[ended/0:126]", ""},
		"fails": {func(s *protocol.SandboxSpec) { s.Command = []string{"sh", "-c", "echo the reason >&2; exit 3"} },
			protocol.ReasonCommandExited, "spec.command", "exit code 3", "[started/0 ended/0:3]", "stderr:the reason\n"},
		"succeeds": {func(s *protocol.SandboxSpec) { s.Command = []string{"true"} },
			protocol.ReasonCommandExited, "spec.command", "exit code 0", "[started/0 ended/0:0]", ""},
		"signal": {func(s *protocol.SandboxSpec) { s.Command = []string{"sh", "-c", "kill -9 $$"} },
			protocol.ReasonCommandExited, "spec.command", "exit code 137", "[started/0 ended/0:137]", ""},
		"memory": {func(s *protocol.SandboxSpec) {
			s.Command, s.Memory = []string{"sh", "-c", "exec dd if=/dev/zero of=/dev/null bs=256M count=1"}, 16<<20
		},
			protocol.ReasonOOMKilled, "spec.memory", "16MiB", "[started/0 ended/0:137]", ""},
		"no-user": {func(s *protocol.SandboxSpec) { s.Command, s.User = []string{"sleep", "1000"}, "nobody-here" },
			protocol.ReasonUserUnknown, "spec.user", "cannot be started", "", ""},
		"no-cwd": {func(s *protocol.SandboxSpec) { s.Command, s.Cwd = []string{"sleep", "1000"}, "/not/there" },
			protocol.ReasonCwdInvalid, "spec.cwd", "cannot be started", "", ""},
	}
	for id, c := range cases {
		spec := f.Spec()
		c.change(&spec)
		s, err := f.Client.Create(ctx, spec, sdk.WithID(id))
		var typed *protocol.Error
		if !errors.As(err, &typed) || typed.Reason != c.reason || typed.Field != c.field ||
			!strings.Contains(typed.Message, c.says) {
			t.Errorf("%s: %v", id, err)
		}
		if s == nil {
			continue
		}
		if c.output != "" && !strings.Contains(typed.Message, strings.TrimPrefix(c.output, "stderr:")[:3]) {
			t.Errorf("%s: the error has no output: %v", id, err)
		}
		h := f.History(id)
		if got := fmt.Sprint(primaryEvents(h)); c.events != "" && got != c.events {
			t.Errorf("%s: the history has %s", id, got)
		}
		if p := h.State.Sandbox.Primary; p == nil || p.State != protocol.PrimaryHasEnded ||
			slices.Contains(h.Kinds(), protocol.SandboxReady) {
			t.Errorf("%s: primary %+v after %v", id, p, h.Kinds())
		}
		if got := ownOutput(t, f, s); got != c.output {
			t.Errorf("%s: its output is %q", id, got)
		}
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// TestTheHistoryRecordsTheSandboxsOwnCommand lets a sandbox's primary command run, end and restart until the sandbox
// fails with a crash loop.
func TestTheHistoryRecordsTheSandboxsOwnCommand(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{CrashWindow: 4 * time.Second, CrashGuard: 3 * time.Second})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Command = []string{"sh", "-c",
		"echo up; trap 'echo bye; exit 7' TERM; while [ ! -e /tmp/bad ]; do sleep 0.1; done; echo down >&2; exit 4"}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Info().Primary; p == nil || p.State != protocol.PrimaryRunning {
		t.Errorf("once the sandbox is ready: %+v", p)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(primaryEvents(f.History("s"))); got != "[started/0 ended/0:7]" {
		t.Errorf("after its stop: %s", got)
	}
	if got := ownOutput(t, f, s); !strings.HasPrefix(got, "stdout:up\nstdout:bye\n") {
		t.Errorf("after its stop its output is %q", got)
	}
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	followed := make(chan string, 1)
	go func() {
		var all strings.Builder
		for k, err := range s.Logs(ctx, sdk.WithFollow(true)) {
			if err != nil {
				all.WriteString(err.Error())
			}
			all.Write(k.Data)
		}
		followed <- all.String()
	}()
	mustExec(ctx, t, s, script("touch /tmp/bad"))
	b := inState(f, "s", protocol.StateFailed, 40*time.Second)
	if b.Reason != protocol.ReasonCrashLoop || !strings.Contains(b.Error.Message, "exited with code 4") ||
		!strings.Contains(b.Error.Message, "down") {
		t.Errorf("the sandbox failed with %v", b.Error)
	}
	all := primaryEvents(f.History("s"))
	if len(all) < 6 || !slices.Equal(all[2:6], []string{"started/0", "ended/0:4", "started/1", "ended/1:4"}) {
		t.Errorf("the history has %q", all)
	}
	if got := <-followed; !strings.HasPrefix(strings.ReplaceAll(got, "Terminated\n", ""),
		"up\nbye\nup\ndown\nup\ndown\n") {
		t.Errorf("followed: %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}

// TestARestartedWorkerFollowsTheCommand kills the worker. While no worker runs, the sandbox's primary command prints
// and ends.
func TestARestartedWorkerFollowsTheCommand(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Command = []string{"sh", "-c",
		"echo up; while [ ! -e /tmp/go ]; do sleep 0.1; done; rm /tmp/go; echo gone; exit 5"}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	w.Kill()
	docker(t, engines.Default(t).Host, "exec", s.Info().Container, "touch", "/tmp/go")
	f.Eventually(10*time.Second, "the command ends and is restarted", func() error {
		printed, err := os.ReadFile(filepath.Join(f.Directories(w)[0], "run", "primary", "stdout"))
		if n := strings.Count(string(printed), "up"); n != 2 {
			return fmt.Errorf("%d starts (%v)", n, err)
		}
		return nil
	})
	w.Restart()
	f.Eventually(adoptedWithin, "the history has the restart", func() error {
		if got := fmt.Sprint(primaryEvents(f.History("s"))); got != "[started/0 ended/0:5 started/1]" {
			return errors.New(got)
		}
		return nil
	})
	f.Eventually(10*time.Second, "the log has the output", func() error {
		if got := ownOutput(t, f, s); got != "stdout:up\nstdout:gone\nup\n" &&
			strings.ReplaceAll(got, "stdout:", "") != "up\ngone\nup\n" {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	f.Judge()
}

// TestACommandMayNeedItsServices uses a sandbox with a primary command that fails until a required service is ready.
func TestACommandMayNeedItsServices(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: 1})
	ctx := f.Context(time.Minute)
	// The service is ready once it listens on port 8080.
	db := withCheck(small("sleep 1.5; while :; do echo yes | nc -l -p 8080 >/dev/null; done"),
		"cat /proc/net/tcp /proc/net/tcp6 | grep -q ':1F90 .* 0A '")
	db.Healthcheck.Retries = 50
	spec := withServices(f, services{"db": db}, nil)
	spec.Command = []string{"sh", "-c", "nc db 8080 </dev/null || exit 1; exec sleep 1000"}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Info().Primary; p == nil || p.State != protocol.PrimaryRunning || p.Restarts == 0 {
		t.Errorf("once the sandbox is ready: %+v", p)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	spec.Command = []string{"sh", "-c", "echo never; exit 9"}
	_, err = f.Client.Create(ctx, spec, sdk.WithID("never"))
	wantError(t, "a command that fails although its services are ready", err, protocol.FailedPrecondition,
		protocol.ReasonCommandExited,
		"spec.command")
	if err := f.Client.Sandbox("never").Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}
