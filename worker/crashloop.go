package worker

import (
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// crashLoop finds a command that exits again and again: one that, for a whole window, never ran for as
// long as the guard. It must not know of what ended because somebody ended it.
type crashLoop struct {
	window, guard time.Duration
	failingSince  time.Time // the first exit since it last ran for the guard; zero: none
	runningSince  time.Time // zero: it does not run
	oom           bool      // its last end was for want of memory
	exit          *int      // exit code of its last end; nil: not known
}

// heard takes what a supervisor says of the command, also what it has said before: it says everything
// at the start of a connection.
func (c *crashLoop) heard(p *control.Primary, now time.Time) {
	since := p.Since
	if since.IsZero() || since.After(now) {
		since = now
	}
	ended := p.LastExit != nil || p.Error != nil
	if ended && !(p.Running && c.runningSince.Equal(since)) { // the run before, where it runs
		c.ended(since, outOfMemory(p))
		c.exit = p.LastExit
	}
	if p.Running {
		c.runningSince = since
	}
}

// ended notes an end.
func (c *crashLoop) ended(at time.Time, oom bool) {
	if !c.failing(at) {
		c.failingSince = at
	}
	c.runningSince, c.oom, c.exit = time.Time{}, oom, nil
}

// failing says whether it has exited, and not run for the guard since.
func (c *crashLoop) failing(now time.Time) bool {
	return !c.failingSince.IsZero() && (c.runningSince.IsZero() || now.Sub(c.runningSince) < c.guard)
}

// looping says whether it is failing for the whole window.
func (c *crashLoop) looping(now time.Time) bool {
	return c.failing(now) && now.Sub(c.failingSince) >= c.window
}

// forget begins anew.
func (c *crashLoop) forget() { *c = crashLoop{window: c.window, guard: c.guard} }

// why is the error of one that loops, which has so much memory.
func (c *crashLoop) why(what string, memory protocol.Bytes) *protocol.Error {
	loops := fmt.Sprintf("again and again: within %s it never ran for %s", c.window, c.guard)
	if c.oom {
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled, "%s runs out of memory (%s) %s", what, memory, loops)
	}
	if c.exit != nil {
		loops += fmt.Sprintf(", and at last exited with code %d", *c.exit)
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCrashLoop, "%s exits %s", what, loops)
}

// outOfMemory says whether a command's last run ended for want of memory.
func outOfMemory(p *control.Primary) bool {
	return p.LastExit != nil && *p.LastExit == killedExit && p.OOMKills > 0
}
