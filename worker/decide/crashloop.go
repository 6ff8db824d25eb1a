package decide

import (
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// CrashLoop detects a command that exits again and again: no run within a whole window reached the length of the
// guard. Do not report ends to it that the worker or an operator caused.
type CrashLoop struct {
	Window, Guard time.Duration

	failingSince time.Time // the first exit since it last ran for the guard; zero: none
	runningSince time.Time // zero: it does not run
	oom          bool      // it ended last because it ran out of memory
	exit         *int      // exit code of its last end; nil: not known
}

// Report takes a supervisor's report on the command. The same report may come twice, since a supervisor reports
// everything when it connects.
func (c *CrashLoop) Report(p *control.Primary, now time.Time) {
	since := p.Since
	if since.IsZero() || since.After(now) {
		since = now
	}
	ended := p.LastExit != nil || p.Error != nil
	if ended && !(p.Running && c.runningSince.Equal(since)) { // if it runs, the run before has ended
		c.Ended(since, OutOfMemory(p))
		c.exit = p.LastExit
	}
	if p.Running {
		c.runningSince = since
	}
}

// Ended records an end.
func (c *CrashLoop) Ended(at time.Time, oom bool) {
	if !c.Failing(at) {
		c.failingSince = at
	}
	c.runningSince, c.oom, c.exit = time.Time{}, oom, nil
}

// Failing reports whether the command has exited, and has not run for the guard since.
func (c *CrashLoop) Failing(now time.Time) bool {
	return !c.failingSince.IsZero() && (c.runningSince.IsZero() || now.Sub(c.runningSince) < c.Guard)
}

// Looping reports whether the command has been failing for the whole window.
func (c *CrashLoop) Looping(now time.Time) bool {
	return c.Failing(now) && now.Sub(c.failingSince) >= c.Window
}

// Reset forgets all ends.
func (c *CrashLoop) Reset() { *c = CrashLoop{Window: c.Window, Guard: c.Guard} }

// Error is the error of a command that loops. what names the command, memory is how much it may use.
func (c *CrashLoop) Error(what string, memory protocol.Bytes) *protocol.Error {
	loops := fmt.Sprintf("again and again: within %s it never ran for %s", c.Window, c.Guard)
	if c.oom {
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled,
			"%s runs out of memory (%s) %s", what, memory, loops)
	}
	if c.exit != nil {
		loops += fmt.Sprintf(", and at last exited with code %d", *c.exit)
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCrashLoop, "%s exits %s", what, loops)
}
