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

func TestX4_ExecEnvironmentIsOverTheSandboxs(t *testing.T) {
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

func TestX6_OutputIsAnnouncedWhileTheExecRuns(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.start(control.Start{Argv: []string{"sh", "-c", "echo one; echo two >&2; exec sleep 1000"}})
	s.await("both streams", func() bool {
		n := len(s.outputs[id])
		return n > 0 && s.outputs[id][n-1] == control.Output{ID: id, Stdout: 4, Stderr: 4}
	})
	if out, errs := s.output(id, "stdout"), s.output(id, "stderr"); out != "one\n" || errs != "two\n" {
		t.Errorf("files hold %q and %q", out, errs)
	}
	s.cancel(id, 0)
	r := s.end(id)
	if !r.Cancelled || string(r.Stdout) != "one\n" || string(r.Stderr) != "two\n" {
		t.Errorf("result %+v", r)
	}
}

func TestX7_OutputIsBytes(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	var table []byte
	for i := range 256 * 300 {
		table = append(table, byte(i))
	}
	for _, size := range []int{0, 1, 256, 65535, 65536, len(table)} {
		id := s.start(control.Start{Argv: []string{"cat"}, Stdin: table[:size], InlineLimit: 1 << 20})
		r := s.end(id)
		if !bytes.Equal(r.Stdout, table[:size]) || r.StdoutBytes != int64(size) || !r.Inline {
			t.Errorf("%d bytes in, %d out, inline %v", size, len(r.Stdout), r.Inline)
		}
		if got := s.output(id, "stdout"); got != string(table[:size]) {
			t.Errorf("%d bytes in, %d in the file", size, len(got))
		}
	}
}

func TestOutputThatTheDiskHasNoRoomForSaysSo(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{disk: "256k"})
	script := []string{"sh", "-c", "head -c 1000000 /dev/zero; echo end"}
	r := s.end(s.start(control.Start{Argv: script}))
	if code(r) != "0" || !r.Truncated || !r.DiskFull || r.StdoutBytes == 0 || r.StdoutBytes > 256<<10 {
		t.Errorf("result %+v", r)
	}
	if cut := s.exec(control.Start{Argv: []string{"true"}, OutputLimit: 10}); cut.DiskFull {
		t.Errorf("an exec that prints nothing: %+v", cut)
	}
}

func TestX8_OutputPastTheCapIsDroppedAndMarked(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	script := []string{"sh", "-c", "head -c 20000000 /dev/zero; echo end >&2"}
	id := s.start(control.Start{Argv: script, OutputLimit: 1_000_001})
	r := s.end(id)
	if code(r) != "0" || !r.Truncated || r.StdoutBytes != 1_000_001 || r.StderrBytes != 4 || r.Inline {
		t.Errorf("result %+v", r)
	}
	if n := len(s.output(id, "stdout")); n != 1_000_001 {
		t.Errorf("%d bytes in the file", n)
	}
	exact := s.exec(control.Start{Argv: []string{"head", "-c", "4096", "/dev/zero"}, OutputLimit: 4096})
	if exact.Truncated || exact.StdoutBytes != 4096 {
		t.Errorf("output of exactly the cap: %+v", exact)
	}
}

func TestX8_ASlowWorkerDoesNotSlowAProcess(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	ended := make(chan control.Result, 100)
	s := newSandbox(t, option{onEnd: func(r control.Result) {
		ended <- r
		<-block
	}})
	defer close(block)
	s.start(control.Start{Argv: []string{"true"}})
	<-ended // from here on the callbacks stand still
	id := s.start(control.Start{Argv: []string{"sh", "-c", "head -c 5000000 /dev/zero"}})
	s.waitForRecord(id)
	s.start(control.Start{Argv: []string{"true"}}) // and calls are answered
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
		t.Errorf("beside a writer that goes on: %+v", r)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if n := len(s.processes()); n != 2 {
		t.Errorf("%d processes live on, want the sleep and the yes: %v", n, s.processes())
	}
}

// stubborn makes a tree of every kind of process that tries to stay: a child, a session of its own,
// a double fork, ignored TERM.
const stubborn = `
trap '' TERM
sleep 1000 &
setsid sleep 1001 &
(setsid sh -c 'trap "" TERM HUP; sleep 1002 & sleep 1003' &) &
echo tree
while :; do sleep 1; done`

func TestX10_TimeoutKillsTheWholeTree(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	const timeout = 3 * time.Second // the tree is to be there by then, which is counted from before the fork
	for _, user := range []string{"root", "agent", "0:10"} {
		began := time.Now()
		r := s.exec(control.Start{Argv: []string{"sh", "-c", stubborn}, User: user, Timeout: timeout, Grace: 200 * time.Millisecond})
		took := time.Since(began)
		if !r.TimedOut || code(r) != "137" || string(r.Stdout) != "tree\n" {
			t.Errorf("as %s: %+v, exit code %s", user, r, code(r))
		}
		if took < timeout+200*time.Millisecond || took > timeout+5*time.Second {
			t.Errorf("as %s: it took %s, want timeout and grace", user, took)
		}
		if left := s.processes(); len(left) > 0 {
			t.Errorf("as %s: left: %v", user, left)
		}
	}
	if r := s.sh("echo alive"); string(r.Stdout) != "alive\n" {
		t.Errorf("afterwards: %+v", r)
	}
}

// With the profile "standard" root can leave its groups, as su does, and then its parents. The session tells whose it is.
func TestX10_TimeoutKillsWhatLeftItsGroupAndItsParents(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{privileged: true})
	s.start(control.Start{ID: "bystander", Argv: []string{"sh", "-c", "(su root -c 'sleep 1001' &); sleep 1000"}})
	r := s.exec(control.Start{ID: "x", Argv: []string{"sh", "-c", "(su root -c 'sleep 2001' &); sleep 2000"}, Timeout: 2 * time.Second})
	if !r.TimedOut {
		t.Errorf("ended with %+v", r)
	}
	left := strings.Join(s.processes(), "\n")
	if strings.Contains(left, "sleep 200") || !strings.Contains(left, "sleep 1001") {
		t.Errorf("there are still:\n%s", left)
	}
}

// The exec's own group is the last in /proc/PID/status, behind all that the image gives the user.
func TestX10_TimeoutKillsTheTreeOfAUserOfManyGroups(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	in := func(groups int) {
		t.Helper()
		if r := s.sh(fmt.Sprintf("seq 1 %d | sed 's/.*/g&:x:100000&:agent/' > /etc/group", groups)); code(r) != "0" {
			t.Fatalf("write /etc/group: %+v", r)
		}
	}
	in(3000)
	r := s.exec(control.Start{
		Argv: []string{"sh", "-c", "trap '' TERM; grep Groups: /proc/self/status | wc -w; setsid sh -c 'sleep 1000 & sleep 1000' & sleep 1000; sleep 1000"},
		User: "agent", Timeout: 2 * time.Second, // its tree is to be there by then
	})
	if !r.TimedOut {
		t.Errorf("it ended with %+v, want timed out", r)
	}
	if got := strings.TrimSpace(string(r.Stdout)); got != "3002" { // words: a title, and the exec's own
		t.Errorf("its groups are %s words, want 3002", got)
	}
	s.awaitEmpty()
	in(5000)
	r = s.exec(control.Start{Argv: []string{"true"}, User: "agent"})
	if !r.Failed || r.Error == nil || r.Error.Reason != protocol.ReasonUserUnknown || r.Error.Field != "spec.user" {
		t.Errorf("a user of 5,000 groups: %+v, want a refusal that names spec.user", r)
	}
	if r := s.exec(control.Start{Argv: []string{"true"}, User: "agent:10"}); code(r) != "0" {
		t.Errorf("the same with one group: %+v", r)
	}
}

func TestX10_TermComesFirstAndMayBeAnswered(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	argv := []string{"sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"}
	id := s.start(control.Start{Argv: argv})
	s.await("its trap", func() bool { return len(s.outputs[id]) > 0 })
	s.cancel(id, time.Minute)
	cancelled := s.end(id) // which is waited for for less than the grace
	if !cancelled.Cancelled || code(cancelled) != "7" || string(cancelled.Stdout) != "up\nbye\n" {
		t.Errorf("cancelled: %+v, exit code %s", cancelled, code(cancelled))
	}
	// The timeout is counted from before the fork, and the shell is to have its trap by then.
	timedOut := s.exec(control.Start{Argv: argv, Timeout: 3 * time.Second, Grace: time.Minute})
	if !timedOut.TimedOut || code(timedOut) != "7" || string(timedOut.Stdout) != "up\nbye\n" {
		t.Errorf("timed out: %+v, exit code %s", timedOut, code(timedOut))
	}
	stopped := s.exec(control.Start{Argv: []string{"sh", "-c", "kill -STOP $$"}, Timeout: 100 * time.Millisecond, Grace: time.Minute})
	if !stopped.TimedOut || code(stopped) != "143" {
		t.Errorf("a stopped process: %+v, exit code %s", stopped, code(stopped))
	}
}

func TestX10_OutputDoesNotPutTheTimeoutOff(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	r := s.exec(control.Start{Argv: []string{"yes"}, Timeout: 300 * time.Millisecond, OutputLimit: 16 << 10})
	if !r.TimedOut || !r.Truncated || r.Ended.Sub(r.Started) > 2*time.Second {
		t.Errorf("result %+v", r)
	}
}

func TestX10_AForkBombIsKilledAndTheSandboxLives(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{args: []string{"--pids-limit", "200"}})
	for _, user := range []string{"root", "agent"} {
		r := s.exec(control.Start{Argv: []string{"sh", "-c", "bomb() { bomb | bomb & }; bomb & exec sleep 1000"}, User: user, Timeout: 500 * time.Millisecond, Grace: 100 * time.Millisecond, OutputLimit: 1 << 20})
		if !r.TimedOut { // the main process needs no fork to stay
			t.Errorf("as %s: %+v", user, r)
		}
		id := s.start(control.Start{Argv: []string{"true"}})
		if r := s.end(id); code(r) != "0" && !r.Failed {
			t.Errorf("as %s: afterwards %+v", user, r)
		}
		s.awaitEmpty()
	}
	if s.connected().Boot != s.hellos[0].Boot {
		t.Error("PID 1 did not live through it")
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
		t.Error("PID 1 did not live through it")
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

func TestX11_WhatCannotBeStartedSaysWhy(t *testing.T) {
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
		t.Errorf("left: %v", left)
	}
	s.cancel(id, 0) // an ended one: nothing
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
		// setuidgid sets the groups before anything else.
		r = s.exec(control.Start{Argv: []string{"setuidgid", "agent", "true"}, User: user})
		if code(r) == "0" {
			t.Errorf("as %s: a process could set its groups", user)
		}
	}
}

func TestP8_ARootExecCannotLookIntoPID1(t *testing.T) {
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

// The supervisor holds files of the host. No process of the sandbox comes by them: not by inheriting, not by looking
// into PID 1, and not by having PID 1 go there for it.
func TestH1_NoExecComesByTheFilesOfPID1(t *testing.T) {
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

// A worker that looks at an old state may ask for an exec again that has ended and is forgotten.
func TestAStartThatWasTakenAndForgottenIsRefused(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	start := control.Start{ID: newID(), Number: 7, Argv: []string{"sh", "-c", "echo run >> /tmp/runs"}}
	again := func() error {
		_, err := s.link.Start(t.Context(), start)
		return err
	}
	s.end(s.start(start))
	if err := again(); err != nil {
		t.Errorf("a repeat of one that is known: %v", err)
	}
	if err := s.link.Forget(t.Context(), start.ID); err != nil {
		t.Fatal(err)
	}
	if err := again(); protocol.CodeOf(err) != protocol.FailedPrecondition || protocol.AsError(err).Reason != protocol.ReasonInterrupted {
		t.Errorf("a repeat of one that is forgotten: %v, want failed_precondition, interrupted", err)
	}
	s.exec(control.Start{Number: 6, Argv: []string{"true"}}) // starts may overtake each other
	if got := string(s.sh("cat /tmp/runs").Stdout); got != "run\n" {
		t.Errorf("it ran so often: %q", got)
	}
}

// A machine that stands still, and goes on when another worker may have its host.
func TestAStartThatASupervisorReadsAfterTheLeaseIsNotRun(t *testing.T) {
	t.Parallel()
	const trust = 200 * time.Millisecond
	written := make(chan struct{}, 16)
	s := newSandbox(t, option{lease: func() (time.Duration, error) {
		written <- struct{}{}
		return control.Clock() + trust, nil
	}})
	s.sh("true") // the supervisor has read the welcome
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
		t.Error("it was run")
	}
	if r := s.exec(start); code(r) != "0" { // its number is not used up
		t.Errorf("the next try: %+v", r)
	}
}

// A worker that comes back asks its supervisor since when an exec runs, not two wall clocks.
func TestASupervisorSaysHowLongAgoAnExecWasStarted(t *testing.T) {
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
