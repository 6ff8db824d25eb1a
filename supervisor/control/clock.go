package control

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock returns the time since the machine booted, including suspensions. Worker and supervisor run on one kernel and
// read the same clock: with it, the worker says until when something may be changed. A supervisor in a virtual machine
// of its own reads a smaller value, and so refuses nothing.
func Clock() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // no current kernel returns an error
	}
	return time.Duration(t.Nano())
}

// Until returns the value of [Command.Until] for a moment of [Clock]. It is never 0, which would mean no limit.
func Until(at time.Duration) time.Duration { return max(at, 1) }
