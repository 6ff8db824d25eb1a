package supervise_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// stubborn starts a tree with every kind of process that tries to survive: a child, its own session, a double fork,
// ignored TERM.
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
	const timeout = 3 * time.Second // counted from before the fork; the tree must exist by then
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
			t.Errorf("as %s: processes are left: %v", user, left)
		}
	}
	if r := s.sh("echo alive"); string(r.Stdout) != "alive\n" {
		t.Errorf("afterwards: %+v", r)
	}
}

// With the profile "standard", root can leave its groups, as su does, and then its parents. Its session still
// identifies the exec.
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

// The exec's own group is the last one in /proc/PID/status, behind all groups that the image gives the user.
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
		User: "agent", Timeout: 2 * time.Second, // its tree must exist by then
	})
	if !r.TimedOut {
		t.Errorf("it ended with %+v, want timed out", r)
	}
	if got := strings.TrimSpace(string(r.Stdout)); got != "3002" { // three words: a title, and two groups of the exec
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
	cancelled := s.end(id) // this takes less time than the grace
	if !cancelled.Cancelled || code(cancelled) != "7" || string(cancelled.Stdout) != "up\nbye\n" {
		t.Errorf("cancelled: %+v, exit code %s", cancelled, code(cancelled))
	}
	// The timeout counts from before the fork, and the shell must have set its trap by then.
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
		if !r.TimedOut { // the main process does not depend on a fork
			t.Errorf("as %s: %+v", user, r)
		}
		id := s.start(control.Start{Argv: []string{"true"}})
		if r := s.end(id); code(r) != "0" && !r.Failed {
			t.Errorf("as %s: afterwards %+v", user, r)
		}
		s.awaitEmpty()
	}
	if s.connected().Boot != s.hellos[0].Boot {
		t.Error("PID 1 died")
	}
}
