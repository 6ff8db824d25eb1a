package fleet

import (
	"errors"
	"testing"
	"time"
)

// A check can end after the deadline, for example because the test process is paused during the check.
func TestEventuallyChecksAgainAfterASlowCheck(t *testing.T) {
	t.Parallel()
	const within = 200 * time.Millisecond
	looks := 0
	(&Fleet{TB: t}).Eventually(within, "there", func() error {
		if looks++; looks > 1 {
			return nil
		}
		<-time.After(2 * within)
		return errors.New("not there yet")
	})
}
