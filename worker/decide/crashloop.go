package decide

import (
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// CrashLoop detects a command that exits again and again: during the whole Window, no run of the command lasted for
// Guard. Do not report ends that the worker or an operator caused.
type CrashLoop struct {
	Window, Guard time.Duration

	failingSince time.Time // first exit since the last run that lasted for Guard; zero: no such exit
	runningSince time.Time // start of the present run; zero: the command does not run
	oom          bool      // the last run ended because the command ran out of memory
	exit         *int      // exit code of the last run; nil: unknown
}

// Report records a supervisor's report on the command. The same report may come twice, because a supervisor repeats its
// last report when it connects.
func (c *CrashLoop) Report(p *control.Primary, now time.Time) {
	since := p.Since
	if since.IsZero() || since.After(now) {
		since = now
	}
	ended := p.LastExit != nil || p.Error != nil
	if ended && !(p.Running && c.runningSince.Equal(since)) { // a new run implies that the run before has ended
		c.Ended(since, OutOfMemory(p))
		c.exit = p.LastExit
	}
	if p.Running {
		c.runningSince = since
	}
}

// Ended records an end of the command.
func (c *CrashLoop) Ended(at time.Time, oom bool) {
	if !c.Failing(at) {
		c.failingSince = at
	}
	c.runningSince, c.oom, c.exit = time.Time{}, oom, nil
}

// Failing reports whether the command has exited, and has not run for Guard since then.
func (c *CrashLoop) Failing(now time.Time) bool {
	return !c.failingSince.IsZero() && (c.runningSince.IsZero() || now.Sub(c.runningSince) < c.Guard)
}

// Looping reports whether the command has been failing for the whole Window.
func (c *CrashLoop) Looping(now time.Time) bool {
	return c.Failing(now) && now.Sub(c.failingSince) >= c.Window
}

// Reset removes all recorded reports and ends.
func (c *CrashLoop) Reset() { *c = CrashLoop{Window: c.Window, Guard: c.Guard} }

// Error returns the error of a command in a crash loop. The first parameter is the subject of the message, such as "the
// service", and the second is the command's memory limit.
func (c *CrashLoop) Error(what string, memory protocol.Bytes) *protocol.Error {
	loops := fmt.Sprintf("again and again: within %s it never ran for %s", c.Window, c.Guard)
	if c.oom {
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled,
			"%s runs out of memory (%s) %s", what, memory, loops)
	}
	if c.exit != nil {
		loops += fmt.Sprintf(", and last exited with code %d", *c.exit)
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCrashLoop, "%s exits %s", what, loops)
}
