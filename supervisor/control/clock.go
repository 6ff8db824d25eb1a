package control

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the machine's time since its boot, suspensions included. Worker and supervisor run on one
// kernel and read the same: the worker says by it until when it may have something changed. A
// supervisor in a virtual machine of its own reads a smaller one, and so refuses nothing.
func Clock() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // no kernel of today says so
	}
	return time.Duration(t.Nano())
}

// Until is a moment by [Clock], for [Command.Until], which is 0 where nothing bounds a command.
func Until(at time.Duration) time.Duration { return max(at, 1) }
