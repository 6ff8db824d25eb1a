package supervise_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// stubborn is a script whose processes are hard to end: a child, a process with its own session, a process after a
// double fork, and processes that ignore TERM.
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
	const timeout = 3 * time.Second // long enough for all processes of the script to start
	for _, user := range []string{"root", "agent", "0:10"} {
		began := time.Now()
		r := s.exec(control.Start{Argv: []string{"sh", "-c", stubborn}, User: user, Timeout: timeout,
			Grace: 200 * time.Millisecond})
		took := time.Since(began)
		if !r.TimedOut || code(r) != "137" || string(r.Stdout) != "tree\n" {
			t.Errorf("as user %s, the exec ended with exit code %s and %+v, want timed out with 137", user, code(r), r)
		}
		if took < timeout+200*time.Millisecond || took > timeout+5*time.Second {
			t.Errorf("as user %s, the exec took %s, want the timeout of %s and the grace period", user, took, timeout)
		}
		if left := s.processes(); len(left) > 0 {
			t.Errorf("as user %s, the exec left the processes %v", user, left)
		}
	}
	if r := s.sh("echo alive"); string(r.Stdout) != "alive\n" {
		t.Errorf("an exec after the timeouts ended with %+v", r)
	}
}

// With the profile "standard", root can drop its groups, as su does, and leave its parents. The process's session still
// shows to which exec the process belongs.
func TestX10_TimeoutKillsWhatLeftItsGroupAndItsParents(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{privileged: true})
	s.start(control.Start{ID: "bystander", Argv: []string{"sh", "-c", "(su root -c 'sleep 1001' &); sleep 1000"}})
	r := s.exec(control.Start{ID: "x", Timeout: 2 * time.Second,
		Argv: []string{"sh", "-c", "(su root -c 'sleep 2001' &); sleep 2000"}})
	if !r.TimedOut {
		t.Errorf("the exec ended with %+v, want timed out", r)
	}
	left := strings.Join(s.processes(), "\n")
	if strings.Contains(left, "sleep 200") || !strings.Contains(left, "sleep 1001") {
		t.Errorf("after the timeout, want only the processes of the other exec, got\n%s", left)
	}
}

// The group by which an exec is found is the last group in /proc/PID/status, after all groups of the user.
func TestX10_TimeoutKillsTheTreeOfAUserOfManyGroups(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	in := func(groups int) {
		t.Helper()
		if r := s.sh(fmt.Sprintf("seq 1 %d | sed 's/.*/g&:x:100000&:agent/' > /etc/group", groups)); code(r) != "0" {
			t.Fatalf("writing /etc/group in the sandbox: %+v", r)
		}
	}
	in(3000)
	r := s.exec(control.Start{
		Argv: []string{"sh", "-c", "trap '' TERM; grep Groups: /proc/self/status | wc -w; " +
			"setsid sh -c 'sleep 1000 & sleep 1000' & sleep 1000; sleep 1000"},
		User: "agent", Timeout: 2 * time.Second, // long enough for all processes of the script to start
	})
	if !r.TimedOut {
		t.Errorf("the exec ended with %+v, want timed out", r)
	}
	// The words are the title of the line, the user's 3,000 groups, and the exec's group.
	if got := strings.TrimSpace(string(r.Stdout)); got != "3002" {
		t.Errorf("the line with the groups has %s words, want 3002", got)
	}
	s.awaitEmpty()
	in(5000)
	r = s.exec(control.Start{Argv: []string{"true"}, User: "agent"})
	if !r.Failed || r.Error == nil || r.Error.Reason != protocol.ReasonUserUnknown || r.Error.Field != "spec.user" {
		t.Errorf("an exec of a user with 5,000 groups ended with %+v, want a refusal that names spec.user", r)
	}
	if r := s.exec(control.Start{Argv: []string{"true"}, User: "agent:10"}); code(r) != "0" {
		t.Errorf("an exec of the same user with one named group ended with %+v, want exit code 0", r)
	}
}

func TestX10_TermComesFirstAndMayBeAnswered(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	argv := []string{"sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"}
	id := s.start(control.Start{Argv: argv})
	s.await("the script to set its trap", func() bool { return len(s.outputs[id]) > 0 })
	s.cancel(id, time.Minute)
	cancelled := s.end(id) // end waits less than the grace period
	if !cancelled.Cancelled || code(cancelled) != "7" || string(cancelled.Stdout) != "up\nbye\n" {
		t.Errorf("the cancelled exec ended with exit code %s and %+v", code(cancelled), cancelled)
	}
	// The timeout is long enough for the script to set its trap.
	timedOut := s.exec(control.Start{Argv: argv, Timeout: 3 * time.Second, Grace: time.Minute})
	if !timedOut.TimedOut || code(timedOut) != "7" || string(timedOut.Stdout) != "up\nbye\n" {
		t.Errorf("the timed-out exec ended with exit code %s and %+v", code(timedOut), timedOut)
	}
	stopped := s.exec(control.Start{Argv: []string{"sh", "-c", "kill -STOP $$"}, Timeout: 100 * time.Millisecond,
		Grace: time.Minute})
	if !stopped.TimedOut || code(stopped) != "143" {
		t.Errorf("the exec with a stopped process ended with exit code %s and %+v", code(stopped), stopped)
	}
}

func TestX10_OutputDoesNotPutTheTimeoutOff(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	r := s.exec(control.Start{Argv: []string{"yes"}, Timeout: 300 * time.Millisecond, OutputLimit: 16 << 10})
	if !r.TimedOut || !r.Truncated || r.Ended.Sub(r.Started) > 2*time.Second {
		t.Errorf("an exec that prints without end ended with %+v, want timed out within 2 s", r)
	}
}

func TestX10_AForkBombIsKilledAndTheSandboxLives(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{args: []string{"--pids-limit", "200"}})
	for _, user := range []string{"root", "agent"} {
		r := s.exec(control.Start{Argv: []string{"sh", "-c", "bomb() { bomb | bomb & }; bomb & exec sleep 1000"}, User: user,
			Timeout: 500 * time.Millisecond, Grace: 100 * time.Millisecond, OutputLimit: 1 << 20})
		if !r.TimedOut { // the main process sleeps until the timeout, even if it cannot fork
			t.Errorf("as user %s, the fork bomb ended with %+v, want timed out", user, r)
		}
		id := s.start(control.Start{Argv: []string{"true"}})
		if r := s.end(id); code(r) != "0" && !r.Failed {
			t.Errorf("as user %s, an exec after the fork bomb ended with %+v", user, r)
		}
		s.awaitEmpty()
	}
	if s.connected().Boot != s.hellos[0].Boot {
		t.Error("PID 1 was started again")
	}
}
