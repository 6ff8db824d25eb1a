package supervise_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

func TestX2_ArgumentsNeverMeetAShell(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	args := []string{`"`, `'`, "a b", "line\nline", "-n", "$(id)", "`id`", "ünï", "", "*", "\xff\xfe"}
	r := s.exec(control.Start{Argv: append([]string{"printf", "%s|"}, args...)})
	if got, want := string(r.Stdout), strings.Join(args, "|")+"|"; got != want {
		t.Errorf("the command saw %q, want %q", got, want)
	}
	if r := s.exec(control.Start{Argv: []string{"echo", "a\x00b"}}); !r.Failed || r.Error.Code != protocol.InvalidArgument {
		t.Errorf("a NUL byte in an argument: %+v, want invalid_argument", r)
	}
}

func TestX4_ExecEnvironmentOverridesTheSandboxs(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{args: []string{"-e", "LAYER=sandbox", "-e", "KEPT=yes"}})
	script := []string{"sh", "-c", `echo "$LAYER $KEPT $HOME $USER"`}
	for _, c := range []struct {
		start control.Start
		want  string
	}{
		{control.Start{Argv: script}, "sandbox yes /root root\n"},
		{control.Start{Argv: script, Env: map[string]string{"LAYER": "exec"}, User: "agent"}, "exec yes /home/agent agent\n"},
		{control.Start{Argv: script, User: "4321"}, "sandbox yes / 4321\n"},
		{control.Start{Argv: script, Env: map[string]string{"HOME": "/h", "USER": "u"}}, "sandbox yes /h u\n"},
	} {
		if r := s.exec(c.start); string(r.Stdout) != c.want {
			t.Errorf("env %v, user %q: %q, want %q", c.start.Env, c.start.User, r.Stdout, c.want)
		}
	}
	r := s.exec(control.Start{Argv: []string{"env"}, Env: map[string]string{"LAYER": "exec", "USER": "u"}})
	for _, name := range []string{"LAYER=", "KEPT=", "USER=", "HOME=", "PATH="} {
		if n := strings.Count("\n"+string(r.Stdout), "\n"+name); n != 1 {
			t.Errorf("%s is %d times in %q", name, n, r.Stdout)
		}
	}
	if r := s.exec(control.Start{Argv: []string{"tool"}, Env: map[string]string{"PATH": "/nowhere"}}); code(r) != "127" {
		t.Errorf("the exec's PATH was not used: exit code %s", code(r))
	}
}

func TestX5_ParallelExecsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.sh("for i in $(seq 100); do mkdir /tmp/$i; done")
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() {
			dir, n := fmt.Sprintf("/tmp/%d", i+1), fmt.Sprint(i)
			r := s.exec(control.Start{Argv: []string{"sh", "-c", "echo $N; pwd; cd /; export N=x"}, Env: map[string]string{"N": n}, Cwd: dir})
			if want := n + "\n" + dir + "\n"; string(r.Stdout) != want {
				t.Errorf("got %q, want %q", r.Stdout, want)
			}
		})
	}
	running.Wait()
}

func TestX9_TheResultWaitsForTheMainProcessOnly(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	began := time.Now()
	r := s.sh("echo out; sleep 1000 & echo err >&2")
	if string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" || code(r) != "0" {
		t.Errorf("result %+v", r)
	}
	r = s.sh("yes & echo started >&2; sleep 0.05")
	if s.output(r.ID, "stderr") != "started\n" || code(r) != "0" || r.StdoutBytes == 0 {
		t.Errorf("with a background writer: %+v", r)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if n := len(s.processes()); n != 2 {
		t.Errorf("%d processes are left, want the sleep and the yes: %v", n, s.processes())
	}
}

func TestF18_ThreadsAreMadeBeforeAnExecCanUseThemUp(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{args: []string{"--pids-limit", "60"}})
	threads := func() int {
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.pid))
		return len(tasks)
	}
	before := threads()
	if before < 28 {
		t.Errorf("%d threads at the beginning", before)
	}
	full := s.start(control.Start{Argv: []string{"sh", "-c", "for i in $(seq 100); do sleep 1000 & done"}})
	var running sync.WaitGroup
	for range 300 {
		running.Go(func() { s.end(s.start(control.Start{Argv: []string{"head", "-c", "100000", "/dev/zero"}})) })
	}
	running.Wait()
	s.cancel(full, 0)
	if after := threads(); after != before {
		t.Errorf("%d threads, %d at the beginning", after, before)
	}
	if s.connected().Boot != s.hellos[0].Boot {
		t.Error("PID 1 died")
	}
}

func TestX11_ExitCodesAreTheShells(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	for _, c := range []struct {
		argv   []string
		code   string
		stderr string
	}{
		{[]string{"true"}, "0", ""},
		{[]string{"sh", "-c", "exit 255"}, "255", ""},
		{[]string{"sh", "-c", "kill -9 $$"}, "137", ""},
		{[]string{"sh", "-c", "kill -TERM $$"}, "143", ""},
		{[]string{"no-such-program"}, "127", "no-such-program: command not found"},
		{[]string{"/no/such/program"}, "127", "/no/such/program: not found"},
		{[]string{""}, "127", "command not found"},
		{[]string{"orphaned"}, "127", "not found"},
		{[]string{"plain"}, "126", "permission denied"},
		{[]string{"garbage"}, "126", "unknown format"},
		{[]string{"/tmp"}, "126", "is a directory"},
	} {
		r := s.exec(control.Start{Argv: c.argv})
		if code(r) != c.code || r.Failed || !strings.Contains(string(r.Stderr), c.stderr) {
			t.Errorf("%q: exit code %s, stderr %q, %v; want %s and %q", c.argv, code(r), r.Stderr, r.Error, c.code, c.stderr)
		}
	}
	id := s.start(control.Start{Argv: []string{"no-such-program"}})
	s.end(id)
	if got := s.output(id, "stderr"); got != "boxfleet: no-such-program: command not found\n" {
		t.Errorf("the message in the file is %q", got)
	}
}

func TestX11_AFailedStartSaysWhy(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	for _, c := range []struct {
		start  control.Start
		reason string
	}{
		{control.Start{User: "nobody-here"}, protocol.ReasonUserUnknown},
		{control.Start{User: "root:no-group"}, protocol.ReasonUserUnknown},
		{control.Start{User: "1000:1500000001"}, protocol.ReasonUserUnknown},
		{control.Start{User: "-1"}, protocol.ReasonUserUnknown},
		{control.Start{Cwd: "/no/such"}, protocol.ReasonCwdInvalid},
		{control.Start{Cwd: "/bin/busybox"}, protocol.ReasonCwdInvalid},
		{control.Start{Cwd: "/root", User: "agent"}, protocol.ReasonCwdInvalid},
		{control.Start{Cwd: "/home/agent", User: "root"}, protocol.ReasonCwdInvalid},
	} {
		c.start.Argv = []string{"true"}
		r := s.exec(c.start)
		if !r.Failed || r.ExitCode != nil || r.Error == nil || r.Error.Reason != c.reason || r.Error.Field == "" {
			t.Errorf("user %q, cwd %q: %+v, want %s", c.start.User, c.start.Cwd, r.Error, c.reason)
		}
	}
	r := s.exec(control.Start{Argv: []string{"sh", "-c", "pwd; id -u; id -g"}, Cwd: "/home/agent", User: "agent"})
	if string(r.Stdout) != "/home/agent\n1000\n1000\n" {
		t.Errorf("in its own home: %q %q %v", r.Stdout, r.Stderr, r.Error)
	}
	r = s.exec(control.Start{Argv: []string{"./tool"}, Cwd: "/home/agent", User: "agent"})
	if code(r) != "127" {
		t.Errorf("a missing relative program: %s", code(r))
	}
	s.exec(control.Start{Argv: []string{"sh", "-c", "printf '#!/bin/sh\necho ran $0 $1\n' > tool; chmod 700 tool"}, Cwd: "/home/agent", User: "agent"})
	r = s.exec(control.Start{Argv: []string{"./tool", "x"}, Cwd: "/home/agent", User: "agent"})
	if string(r.Stdout) != "ran ./tool x\n" {
		t.Errorf("a relative program: %q %q", r.Stdout, r.Stderr)
	}
	r = s.exec(control.Start{Argv: []string{"id", "-G"}, User: "agent"})
	if groups := strings.Fields(string(r.Stdout)); !slices.Contains(groups, "10") {
		t.Errorf("agent's groups are %v, want wheel among them", groups)
	}
}

func TestS3_CancelKillsTheProcess(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.start(control.Start{Argv: []string{"sh", "-c", stubborn}})
	s.await("output", func() bool { return len(s.outputs[id]) > 0 })
	s.cancel(id, time.Hour)
	s.cancel(id, 50*time.Millisecond) // a later call may shorten the grace
	if r := s.end(id); !r.Cancelled || r.TimedOut || code(r) != "137" {
		t.Errorf("result %+v, exit code %s", r, code(r))
	}
	if left := s.processes(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	s.cancel(id, 0) // an ended exec: no effect
	if err := s.link.Cancel(t.Context(), "unknown", 0); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("an unknown exec: %v", err)
	}
}

func TestS17_ANonZeroExitIsNotAFailure(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	r := s.sh("exit 3")
	if code(r) != "3" || r.Failed || r.Cancelled || r.TimedOut || r.Error != nil {
		t.Errorf("result %+v", r)
	}
	if r.Started.IsZero() || r.Ended.Before(r.Started) {
		t.Errorf("from %s to %s", r.Started, r.Ended)
	}
}

func TestP8_NoExecHasOrGainsACapability(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	for _, user := range []string{"root", "agent", "0:1000"} {
		r := s.exec(control.Start{Argv: []string{"grep", "-h", "Cap", "/proc/self/status"}, User: user})
		for line := range strings.Lines(string(r.Stdout)) {
			if !strings.HasSuffix(line, "\t0000000000000000\n") {
				t.Errorf("as %s: %s", user, line)
			}
		}
		// setuidgid first sets the groups.
		r = s.exec(control.Start{Argv: []string{"setuidgid", "agent", "true"}, User: user})
		if code(r) == "0" {
			t.Errorf("as %s: a process could set its groups", user)
		}
	}
}

func TestP8_ARootExecCannotReadPID1(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	for _, path := range []string{"/proc/1/mem", "/proc/1/maps", "/proc/1/environ", "/proc/1/fd/"} {
		r := s.sh("head -c 1 " + path + " >/dev/null; ls " + path + "* >/dev/null && head -c 10 " + path)
		if code(r) == "0" {
			t.Errorf("%s can be read by a root exec", path)
		}
	}
	r := s.sh("kill -9 1; kill -STOP 1; echo still here")
	if string(r.Stdout) != "still here\n" {
		t.Errorf("%+v", r)
	}
}

// The supervisor holds files of the host. No process of the sandbox can get them: not by inheriting, not by reading PID
// 1's /proc, and not by making PID 1 go there for it.
func TestH1_NoExecGetsTheFilesOfPID1(t *testing.T) {
	t.Parallel()
	for _, privileged := range []bool{false, true} {
		s := newSandbox(t, option{privileged: privileged, welcome: control.Welcome{Command: []string{"sh", "-c", "echo printed; sleep 1000"}}})
		held := s.start(control.Start{Argv: []string{"sh", "-c", "seq 1 100000; sleep 1000"}})
		s.await("output", func() bool { return len(s.outputs[held]) > 0 && len(s.primary) > 0 })
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.pid))
		var ours []string
		for _, fd := range fds {
			if target, _ := os.Readlink(fd); strings.HasPrefix(target, s.dir) {
				ours = append(ours, filepath.Base(fd))
			}
		}
		if want := control.ExecFiles + control.PrimaryFiles; err != nil || len(ours) != want {
			t.Fatalf("PID 1 holds %v of the host's files, %v, want %d", ours, err, want)
		}
		for _, user := range []string{"0", "1000"} {
			r := s.exec(control.Start{User: user, Argv: []string{"sh", "-c", `
				for n in $(seq 0 64); do
					readlink /proc/1/fd/$n
					(: < /proc/1/fd/$n) && echo read $n
					(: >> /proc/1/fd/$n) && echo written $n
					[ $n -gt 2 ] && readlink /proc/$$/fd/$n
				done; echo tried`}})
			if string(r.Stdout) != "tried\n" {
				t.Errorf("privileged %v, user %s: %q", privileged, user, r.Stdout)
			}
			for _, of := range []string{"1", "self"} {
				for _, n := range ours {
					path := fmt.Sprintf("/proc/%s/fd/%s", of, n)
					if r := s.exec(control.Start{User: user, Cwd: path, Argv: []string{"pwd"}}); !r.Failed {
						t.Errorf("privileged %v, user %s: a command ran in %s: %q", privileged, user, path, r.Stdout)
					}
					if r := s.exec(control.Start{User: user, Argv: []string{path}}); !r.Failed && code(r) != "126" && code(r) != "127" {
						t.Errorf("privileged %v, user %s: %s was run: exit code %s", privileged, user, path, code(r))
					}
				}
			}
		}
		s.cancel(held, 0)
	}
}

func TestReap_OrphansDoNotStayAsZombies(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.sh("for i in $(seq 50); do (sleep 0.0$i & ) & done")
	s.awaitEmpty()
}

// A worker with outdated state may start an exec again that has ended and is forgotten.
func TestStart_IsRefusedAfterItWasForgotten(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	start := control.Start{ID: newID(), Number: 7, Argv: []string{"sh", "-c", "echo run >> /tmp/runs"}}
	again := func() error {
		_, err := s.link.Start(t.Context(), start)
		return err
	}
	s.end(s.start(start))
	if err := again(); err != nil {
		t.Errorf("repeating a known start: %v", err)
	}
	if err := s.link.Forget(t.Context(), start.ID); err != nil {
		t.Fatal(err)
	}
	if err := again(); protocol.CodeOf(err) != protocol.FailedPrecondition || protocol.AsError(err).Reason != protocol.ReasonInterrupted {
		t.Errorf("repeating a forgotten start: %v, want failed_precondition, interrupted", err)
	}
	s.exec(control.Start{Number: 6, Argv: []string{"true"}}) // starts may arrive out of order
	if got := string(s.sh("cat /tmp/runs").Stdout); got != "run\n" {
		t.Errorf("starts: %q, want one", got)
	}
}

// A machine may be suspended and continue after another worker has taken its host.
func TestStart_ReadAfterTheLeaseIsRefused(t *testing.T) {
	t.Parallel()
	const trust = 200 * time.Millisecond
	written := make(chan struct{}, 16)
	s := newSandbox(t, option{lease: func() (time.Duration, error) {
		written <- struct{}{}
		return control.Clock() + trust, nil
	}})
	s.sh("true") // now the supervisor has read the Welcome
	for len(written) > 0 {
		<-written
	}
	signal := func(sig unix.Signal) {
		if err := unix.Kill(s.pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	start := control.Start{ID: newID(), Number: 1, Argv: []string{"touch", "/tmp/ran"}}
	signal(unix.SIGSTOP)
	s.poll("all threads stopped", func() bool {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.pid))
		for _, path := range stats {
			if stat, err := os.ReadFile(path); err == nil && !bytes.Contains(stat, []byte(") T ")) {
				return false
			}
		}
		return len(stats) > 0
	})
	refused := make(chan error, 1)
	go func() {
		_, err := s.link.Start(t.Context(), start)
		refused <- err
	}()
	<-written
	over := control.Clock() + trust
	s.poll("the end of the lease", func() bool { return control.Clock() > over })
	signal(unix.SIGCONT)
	if err := <-refused; protocol.CodeOf(err) != protocol.Unavailable || protocol.AsError(err).Reason != protocol.ReasonLeaseLost {
		t.Errorf("the start: %v, want unavailable, lease_lost", err)
	}
	if r := s.sh("test ! -e /tmp/ran"); code(r) != "0" {
		t.Error("the exec was started")
	}
	if r := s.exec(start); code(r) != "0" { // the refused start did not use up its number
		t.Errorf("the next try: %+v", r)
	}
}

// A restarted worker asks the supervisor how long an exec has been running, because two wall clocks may differ.
func TestStart_ReportsTheAgeOfARunningExec(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	before := control.Clock()
	id := s.start(control.Start{Argv: []string{"sleep", "60"}})
	started := control.Clock()
	s.poll("some time", func() bool { return control.Clock() > started+50*time.Millisecond })
	asked := control.Clock()
	status, err := s.link.Start(t.Context(), control.Start{ID: id, Argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	if least, most := asked-started, control.Clock()-before; status.Age < least || status.Age > most {
		t.Errorf("%s ago, want %s to %s", status.Age, least, most)
	}
	if err := s.link.Cancel(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if r := s.end(id); !r.Cancelled {
		t.Errorf("%+v", r)
	}
}
