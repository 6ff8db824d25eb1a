package fleet

import (
	"errors"
	"testing"
	"time"
)

// TestEventuallyLooksAgainWhenALookTookLong, as one does in whose middle the test stands still.
func TestEventuallyLooksAgainWhenALookTookLong(t *testing.T) {
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
