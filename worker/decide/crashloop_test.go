package decide

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	testWindow = 5 * time.Minute
	testGuard  = 30 * time.Second
)

// ago returns a report that a command started or ended the given time ago. The command has exited once before.
func ago(d time.Duration, running bool) control.Primary {
	return control.Primary{Running: running, Restarts: 1, LastExit: new(int), Since: time.Now().Add(-d)}
}

// A supervisor repeats its last report when it reconnects.
func TestACommandThatCrashedOnceIsNotLoopingAfterAReconnect(t *testing.T) {
	now := time.Now()
	c := CrashLoop{Window: testWindow, Guard: testGuard}
	crashed, up := ago(time.Hour, false), ago(time.Hour-time.Second, true)
	c.Report(&crashed, crashed.Since)
	c.Report(&up, up.Since)
	c.Report(&up, now)
	if c.Failing(now) || c.Looping(now) {
		t.Errorf("a command that has run for an hour counts as failing: %+v", c)
	}

	// A new worker did not see the command exit, and knows only the last report.
	c.Reset()
	c.Report(&up, now)
	if c.Failing(now) {
		t.Errorf("for a new worker, a command that has run for an hour counts as failing: %+v", c)
	}
	c.Reset()
	just := ago(time.Second, true)
	c.Report(&just, now)
	if !c.Failing(now) || c.Looping(now) {
		t.Errorf("for a new worker, a command that exited a second ago must count as failing, not as looping: %+v", c)
	}
	down := ago(testWindow+time.Second, false)
	c.Reset()
	c.Report(&down, now)
	if !c.Looping(now) {
		t.Errorf("a command that has not run for the whole window does not count as looping: %+v", c)
	}
}

// An exit counts even if the supervisor was not connected and could not report it.
func TestAnExitThatWasNotReportedIsKnownFromTheNextRun(t *testing.T) {
	now := time.Now()
	c := CrashLoop{Window: testWindow, Guard: testGuard}
	c.Report(&control.Primary{Running: true, Since: now.Add(-time.Hour)}, now)
	next := ago(time.Second, true)
	c.Report(&next, now)
	if !c.Failing(now) || c.failingSince != next.Since {
		t.Errorf("the command must count as failing since the start of the new run: %+v", c)
	}
}

func TestACrashLoopBecauseOfMissingMemoryIsReportedAsOutOfMemory(t *testing.T) {
	killed := KilledExit
	for kills, reason := range map[int]string{0: protocol.ReasonCrashLoop, 1: protocol.ReasonOOMKilled} {
		c := CrashLoop{Window: testWindow, Guard: testGuard}
		c.Report(&control.Primary{LastExit: &killed, OOMKills: kills}, time.Now())
		if why := c.Error("it", 1<<20); why.Reason != reason {
			t.Errorf("after %d kills for memory: error %v, want reason %s", kills, why, reason)
		}
	}
}

func TestS23_CrashLoopIsFoundWithinItsWindow(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	fresh := func() *CrashLoop { return &CrashLoop{Window: 300 * time.Second, Guard: 30 * time.Second} }

	c := fresh()
	says := func(s float64, running bool, exits int) { // a report that the command started or ended at second s
		p := control.Primary{Running: running, Restarts: exits, Since: at(s)}
		if exits > 0 {
			p.LastExit = new(int)
		}
		c.Report(&p, at(s))
	}
	exits := 0
	for s := 0.0; s < 300; s += 10 { // the command starts, and exits after a second
		says(s, true, exits)
		exits++
		says(s+1, false, exits)
		if c.Looping(at(s + 5)) {
			t.Fatalf("the command counts as looping after %v s; the window is 300 s", s+5)
		}
	}
	if !c.Looping(at(302)) {
		t.Error("after the window, the command does not count as looping")
	}

	c = fresh()
	says(0, true, 0)
	says(1, false, 1)
	says(290, true, 1)
	if c.Failing(at(321)) || c.Looping(at(321)) {
		t.Error("a command whose last run has lasted for the guard counts as failing or looping")
	}
	says(330, false, 2)
	if c.Looping(at(340)) {
		t.Error("an exit after a long run does not begin a new window")
	}

	if fresh().Looping(at(1e6)) {
		t.Error("a command that never exited counts as looping")
	}
}
