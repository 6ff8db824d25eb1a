package worker

import (
	"testing"
	"time"
)

// An engine may be restarted as often as its operator likes; a container that ends each time soon after
// it was started is given up.
func TestOnlyRevivalsSoonAfterOneAnotherCount(t *testing.T) {
	const window = 5 * time.Minute
	var often revivals
	now := time.Now()
	for n := range 3 * maxRevivals {
		now = now.Add(window + time.Second)
		if !often.another(now, window) {
			t.Fatalf("revival %d, a while after the one before, is refused", n+1)
		}
	}
	var loop revivals
	for n := 1; n <= maxRevivals+1; n++ {
		now = now.Add(window - time.Second)
		if got := loop.another(now, window); got != (n <= maxRevivals) {
			t.Errorf("revival %d of a loop is allowed: %t", n, got)
		}
	}
	loop.undo()
	loop.undo()
	if !loop.another(now, window) {
		t.Error("one that was taken back counts")
	}
}
