package worker

import "time"

// crashLoop finds a primary command that exits again and again: one that, for a whole window, never
// ran for as long as the guard.
type crashLoop struct {
	window, guard time.Duration
	failingSince  time.Time // the first exit since it last ran for the guard; zero: none
	runningSince  time.Time // zero: it does not run
}

// changed notes that the command started or ended.
func (c *crashLoop) changed(running bool, now time.Time) {
	if running {
		c.runningSince = now
		return
	}
	if !c.runningSince.IsZero() && now.Sub(c.runningSince) >= c.guard {
		c.failingSince = time.Time{}
	}
	c.runningSince = time.Time{}
	if c.failingSince.IsZero() {
		c.failingSince = now
	}
}

// looping says whether the window is over.
func (c *crashLoop) looping(now time.Time) bool {
	if c.failingSince.IsZero() || !c.runningSince.IsZero() && now.Sub(c.runningSince) >= c.guard {
		return false
	}
	return now.Sub(c.failingSince) >= c.window
}
