package jetstream

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot returns the time since the machine booted, including suspensions, during which Go's monotonic clock stops.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Since(began) // no current kernel fails here
	}
	return time.Duration(t.Nano())
}
