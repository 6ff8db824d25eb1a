package worker

import (
	"testing"
	"time"
)

func TestACreateHasTheTimeThatIsLeftAndAllOfItWhereTheClockIsWrong(t *testing.T) {
	const whole = 5 * time.Minute
	at := time.Unix(1e9, 0)
	for passed, used := range map[time.Duration]time.Duration{
		0:                    0,
		2 * time.Minute:      2 * time.Minute, // a worker that was away
		whole + time.Second:  whole + time.Second,
		-time.Minute:         0,
		whole + time.Hour:    0, // it would have been ended long ago
		15 * 24 * time.Hour:  0,
		-15 * 24 * time.Hour: 0,
	} {
		a := seenFirst(at, at.Add(passed), whole)
		if !a.at.Equal(at) {
			t.Errorf("%s: of %s", passed, a.at)
		}
		if more := time.Since(a.from) - used; more < 0 || more > time.Minute {
			t.Errorf("%s after it was assigned, %s are used up, want %s", passed, time.Since(a.from), used)
		}
	}
}
