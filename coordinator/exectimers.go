package coordinator

import (
	"time"
)

// execTimers measures how long the watchdog has seen an exec in one condition, such as not started. It uses this
// process's clock, because the clocks of the accepting coordinator and of the worker may differ. The timers of a new
// leader begin at zero. This gives the workers time to come back after an outage, and to report the ends of execs.
type execTimers struct {
	before, now map[execKey]time.Time
}

type execKey struct {
	sandbox key
	exec    string
}

func newExecTimers() *execTimers { return &execTimers{now: map[execKey]time.Time{}} }

// beginScan begins a scan, and forgets the execs for which the last scan did not call elapsed.
func (t *execTimers) beginScan() { t.before, t.now = t.now, make(map[execKey]time.Time) }

// elapsed returns the time since its first call for this exec. A scan without a call for the exec ends the measurement;
// the next call begins a new one.
func (t *execTimers) elapsed(sandbox key, exec string, at time.Time) time.Duration {
	k := execKey{sandbox, exec}
	first, seen := t.before[k]
	if !seen {
		first = at
	}
	t.now[k] = first
	return at.Sub(first)
}
