// Package eventually lets a test wait for a condition instead of sleeping, and checks that tests leave no descriptors
// open. Only tests import it.
package eventually

import (
	"testing"
	"time"
)

// period is the time between two checks of a condition.
const period = 5 * time.Millisecond

// Holds waits until the condition holds, and fails the test if the condition does not hold within the given time. The
// parameter what describes the condition for the failure message, as in "the lease is renewed". Holds must be called
// from the test's own goroutine.
func Holds(t testing.TB, within time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(period)
	}
}
