package supervisor

import (
	"math/rand/v2"
	"testing"
)

func TestStartedNumbers_EachIsTakenOnlyOnceInAnyOrder(t *testing.T) {
	t.Parallel()
	var s startedNumbers
	taken := map[uint64]int{}
	base := uint64(1)
	for range 20 {
		for _, i := range rand.Perm(startWindow) {
			n := base + uint64(i)
			for range 2 {
				if s.take(n) {
					taken[n]++
				}
			}
		}
		base += startWindow / 3
	}
	for n, times := range taken {
		if times != 1 {
			t.Fatalf("number %d was taken %d times, want once", n, times)
		}
	}
	if want := uint64(startWindow); taken[1] != 1 || uint64(len(taken)) < want {
		t.Errorf("%d numbers were taken, want at least %d", len(taken), want)
	}
}

func TestStartedNumbers_BelowTheWindowAreRefused(t *testing.T) {
	t.Parallel()
	var s startedNumbers
	for _, c := range []struct {
		n    uint64
		want bool
	}{
		{10, true}, {10, false}, {9, true}, {10 + startWindow - 1, true}, {10, false}, {11, true},
		{10 + startWindow, true}, {10, false}, {5 * startWindow, true}, {10 + startWindow, false},
		{4*startWindow + 1, true}, {4 * startWindow, false}, {5*startWindow - 1, true}, {5 * startWindow, false},
	} {
		if got := s.take(c.n); got != c.want {
			t.Errorf("taking number %d: got %t, want %t", c.n, got, c.want)
		}
	}
}
