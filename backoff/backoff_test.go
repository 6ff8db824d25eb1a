package backoff_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
)

func TestPausesDoubleUpToTheMaximum(t *testing.T) {
	b := backoff.New(time.Second, 5*time.Second)
	var got []time.Duration
	for range 5 {
		got = append(got, b.Next())
	}
	b.Reset()
	got = append(got, b.Next())
	want := []time.Duration{1e9, 2e9, 4e9, 5e9, 5e9, 1e9}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWaitSleepsForThePauseOrUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		b, began := backoff.New(time.Second, time.Hour), time.Now()
		first, second := b.Wait(ctx), b.Wait(ctx)
		if !first || !second || time.Since(began) != 3*time.Second {
			t.Errorf("two waits took %v, want 3s", time.Since(began))
		}
		if b.Wait(ctx) || time.Since(began) != 5*time.Second {
			t.Errorf("a wait beyond its context ended after %v, want false after 5s", time.Since(began))
		}
	})
}
