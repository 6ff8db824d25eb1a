package coordinator

import (
	"time"
)

// execTimers measures how long the watchdog has seen execs in some condition, by this process's clock: the clocks of
// the accepting coordinator and of the worker may differ. A new leader starts from zero. After an outage a worker needs
// as long as the leader to come back, and then some time to report the end of an exec.
type execTimers struct {
	before, now map[execKey]time.Time
}

type execKey struct {
	sandbox key
	exec    string
}

func newExecTimers() *execTimers { return &execTimers{now: map[execKey]time.Time{}} }

// beginScan begins a scan: execs that the last scan did not ask for are forgotten.
func (t *execTimers) beginScan() { t.before, t.now = t.now, make(map[execKey]time.Time) }

// elapsed returns the time since the first scan in a row that asked for an exec.
func (t *execTimers) elapsed(sandbox key, exec string, at time.Time) time.Duration {
	k := execKey{sandbox, exec}
	first, seen := t.before[k]
	if !seen {
		first = at
	}
	t.now[k] = first
	return at.Sub(first)
}
