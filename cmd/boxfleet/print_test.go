package main

import (
	"strings"
	"testing"
)

func TestABarShowsHowMuchIsDone(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		full        int
		text        string
	}{{0, 0, 0, "0% of 0B"}, {0, 100, 0, "0% of 100B"}, {1 << 19, 1 << 20, 12, "50% of 1MiB"}, {1 << 40, 1 << 40, 24, "100% of 1TiB"}} {
		got := bar(c.done, c.total)
		if strings.Count(got, "█") != c.full || strings.Count(got, "░") != 24-c.full || !strings.HasSuffix(got, c.text) {
			t.Errorf("%d of %d: %q", c.done, c.total, got)
		}
	}
}
