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
	r = s.exec(control.Start{Argv: []string{"echo", "a\x00b"}})
	if !r.Failed || r.Error.Code != protocol.InvalidArgument {
		t.Errorf("a command with a NUL byte in an argument ended with %+v, want invalid_argument", r)
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
		{control.Start{Argv: script, Env: map[string]string{"LAYER": "exec"}, User: "agent"},
			"exec yes /home/agent agent\n"},
		{control.Start{Argv: script, User: "4321"}, "sandbox yes / 4321\n"},
		{control.Start{Argv: script, Env: map[string]string{"HOME": "/h", "USER": "u"}}, "sandbox yes /h u\n"},
	} {
		if r := s.exec(c.start); string(r.Stdout) != c.want {
			t.Errorf("with env %v and user %q, the command printed %q, want %q", c.start.Env, c.start.User, r.Stdout, c.want)
		}
	}
	r := s.exec(control.Start{Argv: []string{"env"}, Env: map[string]string{"LAYER": "exec", "USER": "u"}})
	for _, name := range []string{"LAYER=", "KEPT=", "USER=", "HOME=", "PATH="} {
		if n := strings.Count("\n"+string(r.Stdout), "\n"+name); n != 1 {
			t.Errorf("%s is %d times in the environment, want once:\n%s", name, n, r.Stdout)
		}
	}
	r = s.exec(control.Start{Argv: []string{"tool"}, Env: map[string]string{"PATH": "/nowhere"}})
	if code(r) != "127" {
		t.Errorf("a program outside of the exec's PATH ended with exit code %s, want 127", code(r))
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
			r := s.exec(control.Start{Argv: []string{"sh", "-c", "echo $N; pwd; cd /; export N=x"},
				Env: map[string]string{"N": n}, Cwd: dir})
			if want := n + "\n" + dir + "\n"; string(r.Stdout) != want {
				t.Errorf("exec %d printed %q, want %q", i, r.Stdout, want)
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
		t.Errorf("an exec with a background process ended with %+v", r)
	}
	r = s.sh("yes & echo started >&2; sleep 0.05")
	if s.output(r.ID, "stderr") != "started\n" || code(r) != "0" || r.StdoutBytes == 0 {
		t.Errorf("an exec with a background writer ended with %+v", r)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("both execs took %s, want at most 5 s", took)
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
		t.Errorf("the supervisor has %d threads at the beginning, want at least 28", before)
	}
	full := s.start(control.Start{Argv: []string{"sh", "-c", "for i in $(seq 100); do sleep 1000 & done"}})
	var running sync.WaitGroup
	for range 300 {
		running.Go(func() { s.end(s.start(control.Start{Argv: []string{"head", "-c", "100000", "/dev/zero"}})) })
	}
	running.Wait()
	s.cancel(full, 0)
	if after := threads(); after != before {
		t.Errorf("the supervisor has %d threads at the end, and had %d at the beginning", after, before)
	}
	if s.connected().Boot != s.hellos[0].Boot {
		t.Error("PID 1 was started again")
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
			t.Errorf("%q ended with exit code %s, stderr %q and error %v; want exit code %s and %q", c.argv, code(r),
				r.Stderr, r.Error, c.code, c.stderr)
		}
	}
	id := s.start(control.Start{Argv: []string{"no-such-program"}})
	s.end(id)
	if got := s.output(id, "stderr"); got != "boxfleet: no-such-program: command not found\n" {
		t.Errorf("the message in the file for stderr is %q", got)
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
			t.Errorf("an exec with user %q and cwd %q ended with %+v, want reason %s", c.start.User, c.start.Cwd, r.Error,
				c.reason)
		}
	}
	r := s.exec(control.Start{Argv: []string{"sh", "-c", "pwd; id -u; id -g"}, Cwd: "/home/agent", User: "agent"})
	if string(r.Stdout) != "/home/agent\n1000\n1000\n" {
		t.Errorf("in the user's home, the command printed %q and %q; error %v", r.Stdout, r.Stderr, r.Error)
	}
	r = s.exec(control.Start{Argv: []string{"./tool"}, Cwd: "/home/agent", User: "agent"})
	if code(r) != "127" {
		t.Errorf("a missing relative program ended with exit code %s, want 127", code(r))
	}
	s.exec(control.Start{Cwd: "/home/agent", User: "agent",
		Argv: []string{"sh", "-c", "printf '#!/bin/sh\necho ran $0 $1\n' > tool; chmod 700 tool"}})
	r = s.exec(control.Start{Argv: []string{"./tool", "x"}, Cwd: "/home/agent", User: "agent"})
	if string(r.Stdout) != "ran ./tool x\n" {
		t.Errorf("a relative program printed %q and %q", r.Stdout, r.Stderr)
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
	s.cancel(id, 50*time.Millisecond) // a later call may shorten the grace period
	if r := s.end(id); !r.Cancelled || r.TimedOut || code(r) != "137" {
		t.Errorf("the exec ended with exit code %s and %+v, want cancelled with 137", code(r), r)
	}
	if left := s.processes(); len(left) > 0 {
		t.Errorf("processes of the exec are left: %v", left)
	}
	s.cancel(id, 0) // has no effect on an ended exec
	if err := s.link.Cancel(t.Context(), "unknown", 0); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("cancelling an unknown exec: got %v, want not_found", err)
	}
}

func TestS17_ANonZeroExitIsNotAFailure(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	r := s.sh("exit 3")
	if code(r) != "3" || r.Failed || r.Cancelled || r.TimedOut || r.Error != nil {
		t.Errorf("the exec ended with %+v, want only exit code 3", r)
	}
	if r.Started.IsZero() || r.Ended.Before(r.Started) {
		t.Errorf("the exec ran from %s to %s", r.Started, r.Ended)
	}
}

func TestP8_NoExecHasOrGainsACapability(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	for _, user := range []string{"root", "agent", "0:1000"} {
		r := s.exec(control.Start{Argv: []string{"grep", "-h", "Cap", "/proc/self/status"}, User: user})
		for line := range strings.Lines(string(r.Stdout)) {
			if !strings.HasSuffix(line, "\t0000000000000000\n") {
				t.Errorf("an exec of %s has capabilities: %s", user, line)
			}
		}
		// setuidgid sets its groups before it runs the command.
		r = s.exec(control.Start{Argv: []string{"setuidgid", "agent", "true"}, User: user})
		if code(r) == "0" {
			t.Errorf("an exec of %s could set its groups", user)
		}
	}
}

func TestP8_ARootExecCannotReadPID1(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	for _, path := range []string{"/proc/1/mem", "/proc/1/maps", "/proc/1/environ", "/proc/1/fd/"} {
		r := s.sh("head -c 1 " + path + " >/dev/null; ls " + path + "* >/dev/null && head -c 10 " + path)
		if code(r) == "0" {
			t.Errorf("an exec of root could read %s", path)
		}
	}
	r := s.sh("kill -9 1; kill -STOP 1; echo still here")
	if string(r.Stdout) != "still here\n" {
		t.Errorf("after an exec of root sent signals to PID 1, the exec ended with %+v", r)
	}
}

// The supervisor has files of the host open. No process of the sandbox can get these files: not by inheriting them, not
// by reading PID 1's /proc, and not by making PID 1 open them.
func TestH1_NoExecGetsTheFilesOfPID1(t *testing.T) {
	t.Parallel()
	for _, privileged := range []bool{false, true} {
		welcome := control.Welcome{Command: []string{"sh", "-c", "echo printed; sleep 1000"}}
		s := newSandbox(t, option{privileged: privileged, welcome: welcome})
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
			t.Fatalf("PID 1 has %v of the host's files open, want %d; error %v", ours, want, err)
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
				t.Errorf("privileged: %t, user %s: the exec got files of PID 1: %q", privileged, user, r.Stdout)
			}
			for _, of := range []string{"1", "self"} {
				for _, n := range ours {
					path := fmt.Sprintf("/proc/%s/fd/%s", of, n)
					if r := s.exec(control.Start{User: user, Cwd: path, Argv: []string{"pwd"}}); !r.Failed {
						t.Errorf("privileged: %t, user %s: a command ran in %s, and printed %q", privileged, user, path, r.Stdout)
					}
					r := s.exec(control.Start{User: user, Argv: []string{path}})
					if !r.Failed && code(r) != "126" && code(r) != "127" {
						t.Errorf("privileged: %t, user %s: %s was run, with exit code %s", privileged, user, path, code(r))
					}
				}
			}
		}
		s.cancel(held, 0)
	}
}

func TestReap_OrphansDoNotRemainAsZombies(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.sh("for i in $(seq 50); do (sleep 0.0$i & ) & done")
	s.awaitEmpty()
}

// A worker with outdated state may send the Start of an exec that has ended and is forgotten.
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
		t.Errorf("repeating the start of an exec that is not forgotten: got %v, want no error", err)
	}
	if err := s.link.Forget(t.Context(), start.ID); err != nil {
		t.Fatal(err)
	}
	if err := again(); protocol.CodeOf(err) != protocol.FailedPrecondition ||
		protocol.AsError(err).Reason != protocol.ReasonInterrupted {
		t.Errorf("repeating the start of a forgotten exec: got %v, want failed_precondition, interrupted", err)
	}
	s.exec(control.Start{Number: 6, Argv: []string{"true"}}) // a start with a lower number may arrive later
	if got := string(s.sh("cat /tmp/runs").Stdout); got != "run\n" {
		t.Errorf("the command left the lines %q, want one", got)
	}
}

// A machine may be suspended, and continue after another worker has taken the lock of its host.
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
	if err := <-refused; protocol.CodeOf(err) != protocol.Unavailable ||
		protocol.AsError(err).Reason != protocol.ReasonLeaseLost {
		t.Errorf("the start after the lease: got %v, want unavailable, lease_lost", err)
	}
	if r := s.sh("test ! -e /tmp/ran"); code(r) != "0" {
		t.Error("the refused exec was started")
	}
	if r := s.exec(start); code(r) != "0" { // the number of a refused start can be used again
		t.Errorf("a second start of the refused exec ended with %+v, want exit code 0", r)
	}
}

// A restarted worker asks the supervisor how long an exec has been running, because two wall clocks may differ.
func TestStart_ReportsTheAgeOfARunningExec(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	before := control.Clock()
	id := s.start(control.Start{Argv: []string{"sleep", "60"}})
	started := control.Clock()
	s.poll("an age of 50 ms", func() bool { return control.Clock() > started+50*time.Millisecond })
	asked := control.Clock()
	status, err := s.link.Start(t.Context(), control.Start{ID: id, Argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	if least, most := asked-started, control.Clock()-before; status.Age < least || status.Age > most {
		t.Errorf("the exec was started %s ago, want between %s and %s", status.Age, least, most)
	}
	if err := s.link.Cancel(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if r := s.end(id); !r.Cancelled {
		t.Errorf("the cancelled exec ended with %+v", r)
	}
}
