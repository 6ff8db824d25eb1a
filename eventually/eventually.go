// Package eventually lets a test wait for a condition instead of sleeping, and checks that tests leave no descriptors
// open. Only tests import it.
package eventually

import (
	"testing"
	"time"
)

// Between two checks of a condition, Holds sleeps for a twentieth of the time that it has waited, within these limits.
// A check may send a request or start a process. Many frequent checks would take the processor from the code under
// test.
const (
	period  = 5 * time.Millisecond
	longest = 100 * time.Millisecond
)

// Holds waits until the condition holds, and fails the test if the condition does not hold within the given time. The
// parameter what describes the condition for the failure message, as in "the lease is renewed". Holds must be called
// from the test's own goroutine.
func Holds(t testing.TB, within time.Duration, what string, condition func() bool) {
	t.Helper()
	began := time.Now()
	for !condition() {
		waited := time.Since(began)
		if waited > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(min(max(waited/20, period), longest))
	}
}
