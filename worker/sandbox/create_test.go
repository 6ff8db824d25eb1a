package sandbox

import (
	"testing"
	"time"
)

func TestTheAgeOfAnAssignmentShortensTheCreateUnlessTheClockIsWrong(t *testing.T) {
	const timeout = 5 * time.Minute
	at := time.Unix(1e9, 0)
	for passed, used := range map[time.Duration]time.Duration{
		0:                     0,
		2 * time.Minute:       2 * time.Minute, // the worker did not run for two minutes
		timeout + time.Second: timeout + time.Second,
		-time.Minute:          0,
		timeout + time.Hour:   0, // the coordinators would have ended the create long ago
		15 * 24 * time.Hour:   0,
		-15 * 24 * time.Hour:  0,
	} {
		a := firstRead(at, at.Add(passed), timeout)
		if !a.at.Equal(at) {
			t.Errorf("%s after the assignment: it is recorded with the time %s, want %s", passed, a.at, at)
		}
		if more := time.Since(a.from) - used; more < 0 || more > time.Minute {
			t.Errorf("%s after the assignment, %s of the create's time is used up, want %s", passed, time.Since(a.from), used)
		}
	}
}
