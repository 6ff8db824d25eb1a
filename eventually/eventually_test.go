package eventually_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
)

// recorder is a test whose failure is recorded instead of reported.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestItReturnsAsSoonAsTheConditionHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		eventually.Holds(t, time.Minute, "a second has passed", func() bool { return time.Since(began) >= time.Second })
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("returned after %v", took)
		}
	})
}

func TestItFailsTheTestWithTheCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, done := &recorder{TB: t}, make(chan struct{})
		go func() {
			defer close(done)
			eventually.Holds(r, time.Minute, "the moon is blue", func() bool { return false })
		}()
		<-done
		if r.failure != "not within 1m0s: the moon is blue" {
			t.Errorf("failed with %q", r.failure)
		}
	})
}
