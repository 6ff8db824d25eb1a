package jetstream

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is the machine's time since its boot, suspensions included. Go's monotonic clock stops in them.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Since(began) // no kernel of today says so
	}
	return time.Duration(t.Nano())
}
