package conformance

import "testing"

func TestTheTableHasNoTwoRowsOfOneName(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, b := range Behaviours() {
		if seen[b.Name] {
			t.Errorf("%s: %q is there twice", b.Group, b.Name)
		}
		seen[b.Name] = true
		if b.Group == "" || b.check == nil {
			t.Errorf("%q has no group or no check", b.Name)
		}
	}
	if len(seen) < 200 {
		t.Errorf("only %d behaviours", len(seen))
	}
	t.Logf("%d behaviours", len(seen))
}
