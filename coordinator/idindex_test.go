package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTheIDIndexFindsTheSameIDsAsAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x idIndex
		all := map[string]bool{}
		for range rapid.IntRange(0, 3000).Draw(t, "changes") {
			id := fmt.Sprintf("01%024d", rapid.IntRange(0, 2000).Draw(t, "id"))
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				x.remove(key{Tenant: "a", ID: id})
				delete(all, id)
			} else {
				x.add(key{Tenant: "a", ID: id})
				all[id] = true
			}
		}
		for _, prefix := range []string{"01", "0100000000000000000000000", "01000000000000000000000012", "02", "00"} {
			var want []string
			for id := range all {
				if strings.HasPrefix(id, prefix) {
					want = append(want, id)
				}
			}
			slices.Sort(want)
			want = want[:min(len(want), 1500)]
			if got := x.withPrefix("a", prefix, 1500); !slices.Equal(got, want) {
				t.Fatalf("%s: got %d ids, want %d", prefix, len(got), len(want))
			}
		}
		if got := x.withPrefix("b", "01", 10); len(got) > 0 {
			t.Fatalf("a search for another tenant finds %v", got)
		}
	})
}

// BenchmarkPrefix finds the ids with a prefix among the ids of 100,000 sandboxes.
func BenchmarkPrefix(b *testing.B) {
	var x idIndex
	for i := range 100_000 {
		x.add(key{Tenant: "a", ID: fmt.Sprintf("01%024d", i)})
	}
	for b.Loop() {
		if got := x.withPrefix("a", "010000000000000000000502", 6); len(got) != 6 {
			b.Fatal(got)
		}
	}
}
