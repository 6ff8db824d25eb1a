package wake_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/wake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWakeUpsCoalesce(t *testing.T) {
	s := wake.New()
	for range 3 {
		s.Wake()
	}
	if !s.Pending() || !s.Wait(t.Context()) {
		t.Fatal("no wake-up was recorded")
	}
	if s.Pending() {
		t.Error("three wake-ups before a wait did not become one")
	}
}

func TestAWakeUpDuringWorkIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := wake.New(), 0
		go func() {
			for s.Wait(t.Context()) {
				runs++
				time.Sleep(time.Second) // the loop's work
			}
		}()
		s.Wake()
		synctest.Wait() // the loop is at its work now
		s.Wake()
		time.Sleep(time.Minute)
		synctest.Wait()
		if runs != 2 {
			t.Errorf("the loop ran %d times, want 2", runs)
		}
	})
}

func TestAWaitEndsWithItsContextOrItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := wake.New(), time.Now()
		if !s.WaitFor(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("waited %v, want a minute", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if s.Wait(ctx) {
			t.Error("a wait whose context ended reports a wake-up")
		}
		s.Wake()
		if s.Wait(ctx) || !s.Pending() {
			t.Error("a wait whose context had ended took a wake-up")
		}
	})
}
