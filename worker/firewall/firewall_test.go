package firewall_test

import (
	"strings"
	"testing"
	"time"
)

func TestFiveHundredNetworksAreWrittenAndForgotten(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := h.wall(nil)
	check(t, f.Sync(f.Mark(), nil))
	const n = 500
	start := time.Now()
	for i := range n {
		check(t, f.Protect(network(i, "internet")))
	}
	each := time.Since(start) / n
	start = time.Now()
	check(t, f.Sync(f.Mark(), nil))
	t.Logf("one network: %s; writing all %d anew: %s", each, n, time.Since(start))
	if rules := h.nft("list", "ruleset"); strings.Count(rules, "chain bxf-") != n {
		t.Errorf("there are %d chains", strings.Count(rules, "chain bxf-"))
	}
	start = time.Now()
	for i := range n {
		check(t, f.Forget(network(i, "internet").Bridge))
	}
	t.Logf("forgetting one: %s", time.Since(start)/n)
	if rules := h.nft("list", "ruleset"); strings.Contains(rules, "bxf-0") {
		t.Errorf("rules are left:\n%s", rules)
	}
	check(t, f.Remove())
	check(t, f.Remove())
	if rules := h.nft("list", "ruleset"); rules != "" {
		t.Errorf("rules are left:\n%s", rules)
	}
}
