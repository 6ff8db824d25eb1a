package decide

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// TestTheHistoryGetsWhatItLacksOfACommand lists what the history has, what a supervisor says, and the
// events that follow: run numbers, with the exit code of an end.
func TestTheHistoryGetsWhatItLacksOfACommand(t *testing.T) {
	t.Parallel()
	four := 4
	said := func(restarts int, running bool) *PrimaryRun {
		r := &PrimaryRun{Boot: "b1", Primary: control.Primary{Running: running, Restarts: restarts}}
		if !running || restarts > 0 {
			r.LastExit = &four
		}
		return r
	}
	unstartable := said(0, false)
	unstartable.Error = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed, "not found")
	known := func(boot string, state protocol.PrimaryState, restarts int) *protocol.PrimaryStatus {
		return &protocol.PrimaryStatus{Boot: boot, State: state, Restarts: restarts}
	}
	running, ended := protocol.PrimaryRunning, protocol.PrimaryHasEnded
	for _, c := range []struct {
		what  string
		known *protocol.PrimaryStatus
		said  *PrimaryRun
		want  string
	}{
		{"nothing is heard", nil, &PrimaryRun{Boot: "b1"}, ""},
		{"the first start", nil, said(0, true), "started 0"},
		{"it is known", known("b1", running, 0), said(0, true), ""},
		{"its end", known("b1", running, 0), said(0, false), "ended 0:4"},
		{"its end is known", known("b1", ended, 0), said(0, false), ""},
		{"it is started again", known("b1", ended, 0), said(1, true), "started 1"},
		{"its end was not heard", known("b1", running, 0), said(1, true), "ended 0:4 started 1"},
		{"several runs were not heard", known("b1", running, 0), said(5, true), "ended 4:4 started 5"},
		{"nor the last start", known("b1", ended, 0), said(3, false), "started 3 ended 3:4"},
		{"an old word", known("b1", running, 2), said(1, false), ""},
		{"another start of the container", known("b0", running, 7), said(0, true), "started 0"},
		{"it cannot be started", nil, unstartable, "ended 0:4"},
	} {
		var got []string
		for _, e := range c.said.events(c.known) {
			word := fmt.Sprintf("%s %d", strings.TrimPrefix(string(e.Kind), "primary."), e.Primary.Restarts)
			if e.Primary.ExitCode != nil {
				word += fmt.Sprintf(":%d", *e.Primary.ExitCode)
			}
			got = append(got, word)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

func TestACommandIsSteadyOnceItHasRunForAWhile(t *testing.T) {
	t.Parallel()
	now := time.Now()
	three := 3
	run := func(p control.Primary) *PrimaryRun { return &PrimaryRun{Primary: p} }
	for what, c := range map[string]struct {
		run    *PrimaryRun
		from   time.Time
		wait   time.Duration
		reason string
	}{
		"not started yet":     {run(control.Primary{}), time.Time{}, CheckPeriod, ""},
		"just started":        {run(control.Primary{Running: true, Since: now}), time.Time{}, SteadyFor, ""},
		"running":             {run(control.Primary{Running: true, Since: now.Add(-SteadyFor)}), time.Time{}, 0, ""},
		"ended at once":       {run(control.Primary{LastExit: &three, Began: now, Since: now}), time.Time{}, 0, protocol.ReasonCommandExited},
		"ended after a while": {run(control.Primary{LastExit: &three, Began: now.Add(-SteadyFor), Since: now}), time.Time{}, 0, ""},
		"ended before services were ready": {run(control.Primary{LastExit: &three, Began: now.Add(-time.Second), Since: now}), now,
			CheckPeriod, ""},
		"cannot be started": {run(control.Primary{Error: protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed, "x")}), now,
			0, protocol.ReasonStartFailed},
	} {
		wait, why := c.run.Steady(&protocol.SandboxSpec{}, c.from, now)
		reason := ""
		if why != nil {
			reason = why.Reason
		}
		if wait != c.wait || reason != c.reason {
			t.Errorf("%s: wait %s, %v", what, wait, why)
		}
	}
}
