package sandbox

import (
	"testing"
	"time"
)

func TestACreateHasTheTimeThatIsLeftOrAllOfItWithAWrongClock(t *testing.T) {
	const timeout = 5 * time.Minute
	at := time.Unix(1e9, 0)
	for passed, used := range map[time.Duration]time.Duration{
		0:                     0,
		2 * time.Minute:       2 * time.Minute, // the worker was away
		timeout + time.Second: timeout + time.Second,
		-time.Minute:          0,
		timeout + time.Hour:   0, // the coordinators would have ended it long ago
		15 * 24 * time.Hour:   0,
		-15 * 24 * time.Hour:  0,
	} {
		a := firstRead(at, at.Add(passed), timeout)
		if !a.at.Equal(at) {
			t.Errorf("%s: of %s", passed, a.at)
		}
		if more := time.Since(a.from) - used; more < 0 || more > time.Minute {
			t.Errorf("%s after it was assigned, %s are used up, want %s", passed, time.Since(a.from), used)
		}
	}
}
