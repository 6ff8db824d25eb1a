package decide

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// Each case has the status in the log, a supervisor's report, and the expected events. An event is written with the
// number of its run, and an end also with its exit code.
func TestPrimaryEventsAreThoseThatTheLogLacks(t *testing.T) {
	t.Parallel()
	four := 4
	report := func(restarts int, running bool) *PrimaryRun {
		r := &PrimaryRun{Boot: "b1", Primary: control.Primary{Running: running, Restarts: restarts}}
		if !running || restarts > 0 {
			r.LastExit = &four
		}
		return r
	}
	unstartable := report(0, false)
	unstartable.Error = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed, "not found")
	known := func(boot string, state protocol.PrimaryState, restarts int) *protocol.PrimaryStatus {
		return &protocol.PrimaryStatus{Boot: boot, State: state, Restarts: restarts}
	}
	running, ended := protocol.PrimaryRunning, protocol.PrimaryHasEnded
	for _, c := range []struct {
		what   string
		known  *protocol.PrimaryStatus
		report *PrimaryRun
		want   string
	}{
		{"no report", nil, &PrimaryRun{Boot: "b1"}, ""},
		{"the first start", nil, report(0, true), "started 0"},
		{"a known start", known("b1", running, 0), report(0, true), ""},
		{"the end", known("b1", running, 0), report(0, false), "ended 0:4"},
		{"a known end", known("b1", ended, 0), report(0, false), ""},
		{"a restart", known("b1", ended, 0), report(1, true), "started 1"},
		{"an end that was not reported", known("b1", running, 0), report(1, true), "ended 0:4 started 1"},
		{"several runs that were not reported", known("b1", running, 0), report(5, true), "ended 4:4 started 5"},
		{"a last run whose start was not reported either", known("b1", ended, 0), report(3, false), "started 3 ended 3:4"},
		{"an outdated report", known("b1", running, 2), report(1, false), ""},
		{"another start of the container", known("b0", running, 7), report(0, true), "started 0"},
		{"a command that cannot be started", nil, unstartable, "ended 0:4"},
	} {
		var got []string
		for _, e := range c.report.events(c.known) {
			word := fmt.Sprintf("%s %d", strings.TrimPrefix(string(e.Kind), "primary."), e.Primary.Restarts)
			if e.Primary.ExitCode != nil {
				word += fmt.Sprintf(":%d", *e.Primary.ExitCode)
			}
			got = append(got, word)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: the events are %q, want %q", c.what, got, c.want)
		}
	}
}

func TestACommandIsSteadyOnceItHasRunForAWhile(t *testing.T) {
	t.Parallel()
	now := time.Now()
	three := 3
	run := func(p control.Primary) *PrimaryRun { return &PrimaryRun{Primary: p} }
	notFound := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed, "not found")
	for what, c := range map[string]struct {
		run    *PrimaryRun
		from   time.Time
		wait   time.Duration
		reason string
	}{
		"not started yet": {run(control.Primary{}), time.Time{}, CheckPeriod, ""},
		"just started":    {run(control.Primary{Running: true, Since: now}), time.Time{}, SteadyFor, ""},
		"running":         {run(control.Primary{Running: true, Since: now.Add(-SteadyFor)}), time.Time{}, 0, ""},
		"ended right after its start": {run(control.Primary{LastExit: &three, Began: now, Since: now}), time.Time{},
			0, protocol.ReasonCommandExited},
		"ended after a while": {run(control.Primary{LastExit: &three, Began: now.Add(-SteadyFor), Since: now}), time.Time{},
			0, ""},
		"ended before services were ready": {run(control.Primary{LastExit: &three, Began: now.Add(-time.Second), Since: now}),
			now, CheckPeriod, ""},
		"cannot be started": {run(control.Primary{Error: notFound}), now, 0, protocol.ReasonStartFailed},
	} {
		wait, why := c.run.Steady(&protocol.SandboxSpec{}, c.from, now)
		reason := ""
		if why != nil {
			reason = why.Reason
		}
		if wait != c.wait || reason != c.reason {
			t.Errorf("a command that has %s: wait %s and error %v, want %s and reason %q", what, wait, why, c.wait, c.reason)
		}
	}
}
