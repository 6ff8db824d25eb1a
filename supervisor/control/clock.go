package control

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock returns the time since the machine booted, including the time during which the machine was suspended. The
// worker uses this clock to tell the supervisor the time until which a command may be carried out. Both run on the same
// kernel, so they read the same clock. A supervisor in its own virtual machine reads a smaller value, and therefore
// never finds that a command is too late.
func Clock() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // no current kernel returns an error
	}
	return time.Duration(t.Nano())
}

// Until returns the value of [Command.Until] for a time of [Clock]. It is never 0, which would mean no limit.
func Until(at time.Duration) time.Duration { return max(at, 1) }
