package supervise_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

func TestP5_TheSameIDStartsNothingTwice(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	start := control.Start{ID: "once", Argv: []string{"sh", "-c", "echo x >> /tmp/ran; echo ran; sleep 1000"}}
	for range 20 {
		go s.link.Start(context.Background(), start)
	}
	s.start(start)
	s.await("output", func() bool { return len(s.outputs["once"]) > 0 })
	s.cancel("once", 0)
	s.end("once")
	status, err := s.link.Start(t.Context(), start)
	if err != nil || status.Result == nil || !status.Result.Cancelled {
		t.Errorf("starting the ended exec again: got %+v and error %v, want the cancelled result", status, err)
	}
	if r := s.sh("cat /tmp/ran"); string(r.Stdout) != "x\n" {
		t.Errorf("the command ran %d times, want once", strings.Count(string(r.Stdout), "x"))
	}
}

func TestP5_AnIDOfAnEarlierBootIsInterrupted(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	ended := s.exec(control.Start{Argv: []string{"sh", "-c", "exit 5"}})
	running := s.start(control.Start{Argv: []string{"sh", "-c", "trap '' TERM; sleep 1000"}})
	s.waitForRecord(ended.ID)                              // the record is written a moment after the result was sent
	if _, err := docker("kill", s.container); err != nil { // kills PID 1 and all other processes
		t.Fatal(err)
	}
	s.await("the disconnect", func() bool { return s.gone == 1 })
	if record := s.waitForRecord(ended.ID); code(record.Result) != "5" || record.Boot != s.hellos[0].Boot {
		t.Errorf("after PID 1 was killed, the exit record is %+v", record)
	}
	if _, err := docker("start", s.container); err != nil {
		t.Fatal(err)
	}
	s.expect()
	s.await("a new boot", func() bool { return len(s.hellos) == 2 })
	if s.hellos[1].Boot == s.hellos[0].Boot || len(s.hellos[1].Execs) != 0 {
		t.Errorf("the Hello of the second boot is %+v, want another boot without execs", s.hellos[1])
	}
	for _, id := range []string{ended.ID, running} {
		_, err := s.link.Start(t.Context(), control.Start{ID: id, Boot: s.hellos[0].Boot, Argv: []string{"true"}})
		if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonInterrupted {
			t.Errorf("starting exec %s of the first boot: got %v, want interrupted", id, err)
		}
	}
}

func TestS4_ExecsOutliveTheWorker(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	long := s.start(control.Start{Argv: []string{"sh", "-c",
		"echo before; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo after; exit 9"}})
	short := s.start(control.Start{Argv: []string{"sh", "-c",
		"while [ ! -e /tmp/go ]; do sleep 0.02; done; echo gone >&2"}})
	timed := s.start(control.Start{Argv: []string{"sleep", "1000"}, Timeout: 300 * time.Millisecond})
	s.link.Close()
	if _, err := docker("exec", s.container, "touch", "/tmp/go"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{long, short, timed} {
		s.waitForRecord(id)
	}
	s.listen(control.Welcome{Key: s.key}, nil)
	defer s.link.Close()
	s.link.Expect(s.pid)
	hello := s.connected()
	got := map[string]control.ExecStatus{}
	for _, e := range hello.Execs {
		got[e.ID] = e
	}
	if r := got[long].Result; r == nil || code(*r) != "9" || r.StdoutBytes != 13 ||
		s.output(long, "stdout") != "before\nafter\n" {
		t.Errorf("the exec that printed before and after the restart has the status %+v", got[long])
	}
	if r := got[short].Result; r == nil || code(*r) != "0" || s.output(short, "stderr") != "gone\n" {
		t.Errorf("the exec that printed only while no worker was connected has the status %+v", got[short])
	}
	if r := got[timed].Result; r == nil || !r.TimedOut {
		t.Errorf("the exec that timed out while no worker was connected has the status %+v", got[timed])
	}
}

func TestHello_ListsAllExecsThatAreNotForgotten(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	const n = 600 // enough for several frames
	for i := range n {
		go s.start(control.Start{ID: "h" + strings.Repeat("x", 60)[:i%50] + "-" + newID(), Argv: []string{"true"}})
	}
	s.await("all execs to end", func() bool { return len(s.results) == n })
	var forgotten []string
	for id := range s.results {
		if len(forgotten) < 100 {
			forgotten = append(forgotten, id)
		}
	}
	if err := s.link.Forget(t.Context(), append(forgotten, "unknown", "../../etc")...); err != nil {
		t.Fatal(err)
	}
	s.link.Close()
	s.listen(control.Welcome{Key: s.key}, nil)
	defer s.link.Close()
	s.link.Expect(s.pid)
	if hello := s.connected(); len(hello.Execs) != n-100 {
		t.Errorf("the Hello lists %d execs, want %d", len(hello.Execs), n-100)
	}
	for _, id := range forgotten {
		if _, err := os.Lstat(filepath.Join(s.dir, "run/execs", id)); !os.IsNotExist(err) {
			t.Errorf("the directory of the forgotten exec %s still exists: %v", id, err)
		}
	}
}

func TestForget_SkipsRunningExecs(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.start(control.Start{Argv: []string{"sh", "-c", "echo x; sleep 1000"}})
	s.await("output", func() bool { return len(s.outputs[id]) > 0 })
	if err := s.link.Forget(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s.cancel(id, 0)
	if r := s.end(id); !r.Cancelled {
		t.Errorf("the exec ended with %+v, want cancelled", r)
	}
	// Under an older supervisor, processes of the sandbox may have created anything in the exec's directory.
	dir, outside := filepath.Join(s.dir, "run/execs", id), t.TempDir()
	if err := errors.Join(os.MkdirAll(dir+"/deep/er", 0o700), os.Symlink(outside, dir+"/deep/link"),
		os.WriteFile(outside+"/keep", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := s.link.Forget(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory of the forgotten exec still exists: %v", err)
	}
	if _, err := os.Stat(outside + "/keep"); err != nil {
		t.Errorf("Forget followed a link, and removed a file outside: %v", err)
	}
}

func TestS3_StopAllCancelsEverything(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{welcome: control.Welcome{Command: []string{"sh", "-c", "trap '' TERM; sleep 1000"}}})
	s.await("the primary command", func() bool { return len(s.primary) > 0 })
	s.sh("sleep 1000 &") // an ended exec leaves this process behind
	ids := []string{}
	for range 10 {
		ids = append(ids, s.start(control.Start{Argv: []string{"sh", "-c", stubborn}}))
	}
	if err := s.link.StopAll(t.Context(), 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if r := s.end(id); !r.Cancelled {
			t.Errorf("exec %s ended with %+v, want cancelled", id, r)
		}
	}
	if left := s.processes(); len(left) > 0 {
		t.Errorf("processes are left after StopAll: %v", left)
	}
	_, err := s.link.Start(t.Context(), control.Start{ID: "late", Argv: []string{"true"}})
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonSandboxStopping {
		t.Errorf("a start after StopAll: got %v, want sandbox_stopping", err)
	}
}

func TestStop_AnIdleSandboxStopsAtOnce(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{welcome: control.Welcome{Grace: time.Minute}})
	s.sh("true")
	s.stop()
}

func TestS3_TermKillsExecsAndTheirRecordsSaySo(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{welcome: control.Welcome{Grace: time.Minute}})
	id := s.start(control.Start{Argv: []string{"sh", "-c", stubborn}})
	s.await("output", func() bool { return len(s.outputs[id]) > 0 })
	s.stop()
	if record := s.waitForRecord(id); !record.Result.Cancelled || code(record.Result) != "137" {
		t.Errorf("the exit record has the result %+v, want cancelled with exit code 137", record.Result)
	}
	if r := s.end(id); !r.Cancelled {
		t.Errorf("the worker got the result %+v, want cancelled", r)
	}
}

// stop sends TERM, and waits until the container has ended. The test fails unless the container ends with exit code 0,
// and in much less time than the grace period of a minute. The limit leaves time for Docker.
func (s *sandbox) stop() {
	s.t.Helper()
	began := time.Now()
	if _, err := docker("kill", "-s", "TERM", s.container); err != nil {
		s.t.Fatal(err)
	}
	out, err := docker("wait", s.container)
	if err != nil || out != "0" {
		logs, _ := exec.Command("docker", "logs", s.container).CombinedOutput()
		s.t.Errorf("the container ended with exit code %s and error %v, want 0; the supervisor's log is\n%s", out, err, logs)
	}
	if took := time.Since(began); took > 30*time.Second {
		s.t.Errorf("the container took %s to end, want at most 30 s", took)
	}
}

func TestPrimary_RunsOnceGetsSignalsAndItsGrace(t *testing.T) {
	t.Parallel()
	script := `trap 'echo usr1' USR1; trap 'echo hup' HUP; trap 'echo bye; exit 0' TERM
		id -u; pwd; echo $A; while :; do sleep 0.02; done`
	welcome := control.Welcome{Command: []string{"sh", "-c", script}, Env: map[string]string{"A": "b"},
		DefaultUser: "agent", DefaultCwd: "/tmp", Grace: time.Minute}
	s := newSandbox(t, option{welcome: welcome})
	out := func() string {
		data, _ := os.ReadFile(filepath.Join(s.dir, "run/primary/stdout"))
		return string(data)
	}
	s.poll("the primary command to start", func() bool { return out() == "1000\n/tmp\nb\n" })
	for _, signal := range []string{"USR1", "HUP"} {
		if _, err := docker("kill", "-s", signal, s.container); err != nil {
			t.Fatal(err)
		}
		s.poll("the trap for "+signal, func() bool { return strings.HasSuffix(out(), strings.ToLower(signal)+"\n") })
	}
	s.link.Close() // a new connection must not start the command again
	welcome.Key = s.key
	s.listen(welcome, nil)
	defer s.link.Close()
	s.link.Expect(s.pid)
	if p := s.connected().Primary; p == nil || !p.Running || p.Restarts != 0 {
		t.Errorf("after a new connection, the primary command is %+v, want running without restarts", p)
	}
	s.stop()
	if want := "1000\n/tmp\nb\nusr1\nhup\nbye\n"; out() != want {
		t.Errorf("the output of the primary command is %q, want %q", out(), want)
	}
}

func TestPrimary_EndsByItsStopSignal(t *testing.T) {
	t.Parallel()
	script := `(trap 'echo child usr1' USR1; trap 'echo child term; exit 0' TERM; echo up; while :; do sleep 0.02; done) &
		trap 'echo asked; sleep 0.3; echo done; exit 0' USR1; trap 'echo term' TERM; echo up; while :; do sleep 0.02; done`
	welcome := control.Welcome{Command: []string{"sh", "-c", script}, StopSignal: int(syscall.SIGUSR1), Grace: time.Minute}
	for how, end := range map[string]func(*sandbox) error{
		"by the worker":      func(s *sandbox) error { return s.link.StopAll(t.Context(), time.Minute) },
		"with its container": func(s *sandbox) error { s.stop(); return nil },
	} {
		s := newSandbox(t, option{welcome: welcome})
		out := func() string {
			data, _ := os.ReadFile(filepath.Join(s.dir, "run/primary/stdout"))
			return string(data)
		}
		s.poll("the command and its child to start", func() bool { return out() == "up\nup\n" })
		if err := end(s); err != nil {
			t.Fatal(err)
		}
		// The command gets its stop signal. Its child, which it leaves behind, gets TERM.
		if want := "up\nup\nasked\ndone\nchild term\n"; out() != want {
			t.Errorf("stopped %s, the command's output is %q, want %q", how, out(), want)
		}
	}
	s := newSandbox(t, option{welcome: control.Welcome{StopSignal: int(syscall.SIGUSR1),
		Command: []string{"sh", "-c", "trap '' USR1; echo up; while :; do sleep 0.02; done"}}})
	s.poll("the command that ignores its stop signal to start", func() bool {
		data, _ := os.ReadFile(filepath.Join(s.dir, "run/primary/stdout"))
		return string(data) == "up\n"
	})
	began := time.Now()
	if err := s.link.StopAll(t.Context(), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("a command that ignores its stop signal ended after %s, want its grace period of 300 ms", took)
	}
	if left := s.processes(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

func TestPrimary_IsRestartedAndItsOutputBounded(t *testing.T) {
	t.Parallel()
	// The first two runs leave a process behind and print much. The later runs exit at once, so the test need not count
	// them.
	script := "echo >>/tmp/runs; [ $(wc -l </tmp/runs) -gt 2 ] && exit 4; sleep 1000 & head -c 3000000 /dev/zero; exit 4"
	s := newSandbox(t, option{welcome: control.Welcome{Command: []string{"sh", "-c", script}}})
	s.await("two restarts", func() bool {
		return slices.ContainsFunc(s.primary, func(p control.Primary) bool {
			return p.Restarts == 1 && p.LastExit != nil && *p.LastExit == 4 && !p.Running
		})
	})
	info, err := os.Stat(filepath.Join(s.dir, "run/primary/stdout"))
	if err != nil || info.Size() != 6_000_000 {
		t.Fatalf("the output file is %v, want 6,000,000 bytes; error %v", info, err)
	}
	kept := info.Sys().(*syscall.Stat_t).Blocks * 512
	if kept < control.PrimaryWindow || kept > control.PrimaryWindow*3/2 {
		t.Errorf("%d bytes of the output are on disk, want about %d", kept, control.PrimaryWindow)
	}
	sleeps := func(process string) bool { return strings.HasSuffix(process, " sleep 1000") }
	if left := s.processes(); slices.ContainsFunc(left, sleeps) {
		t.Errorf("a process of an earlier run is left: %v", left)
	}
}

func TestPrimary_ThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{welcome: control.Welcome{Command: []string{"no-such"}}})
	s.await("the state with the reason", func() bool {
		return len(s.primary) > 0 && s.primary[0].Error != nil && *s.primary[0].LastExit == 127 && !s.primary[0].Running
	})
}

func TestEmptyImage_TheSupervisorNeedsNothing(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{image: emptyImage})
	if r := s.sh("true"); code(r) != "127" {
		t.Errorf("a shell, which the image does not have, ended with exit code %s and error %v, want 127", code(r), r.Error)
	}
	r := s.exec(control.Start{Argv: []string{"/.boxfleet/supervisor", "-help"}, User: "1000:1000"})
	if code(r) != "0" || !strings.Contains(string(r.Stderr), "-control") {
		t.Errorf("a static program ended with exit code %s, and printed %q", code(r), r.Stderr)
	}
}

func TestMemory_AnIdleSupervisorIsSmall(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	for range 50 {
		s.sh("head -c 100000 /dev/zero")
	}
	const most = 8_000_000 // bytes; about 4.4 MiB of it is the program, whose pages all sandboxes of a host share
	var resident int
	s.poll("a resident size of at most 8 MB", func() bool {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(s.pid) + "/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "VmRSS:")
		kib, err := strconv.Atoi(strings.Fields(rest)[0])
		resident = kib << 10
		return err == nil && resident <= most
	})
	t.Logf("%d bytes are resident", resident)
	if info, _ := os.Stat(binary); info.Size() > 5_000_000 {
		t.Errorf("the supervisor's binary has %d bytes, want at most 5 MB", info.Size())
	}
}
