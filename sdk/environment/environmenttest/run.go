package environmenttest

import (
	"os"
	"testing"

	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/conformance"
)

// AllVariable is the environment variable that makes [Sample] check everything.
const AllVariable = "BOXFLEET_ENVIRONMENTS"

// Sample returns options that check a part of the table, for environments in which each call takes long. With
// BOXFLEET_ENVIRONMENTS=all the options check the whole table.
func Sample() conformance.Options {
	if os.Getenv(AllVariable) == "all" {
		return conformance.Options{}
	}
	return conformance.Options{Sample: 8}
}

// Run checks every behaviour of the table against an environment. A behaviour that fails fails the test. The log of the
// test lists the behaviours that are missing, and counts the others.
func Run(t *testing.T, env environment.Environment, o conformance.Options) {
	t.Helper()
	counts := map[conformance.State]int{}
	for outcome := range conformance.Run(t.Context(), env, o) {
		counts[outcome.State]++
		switch outcome.State {
		case conformance.Failed:
			t.Errorf("%s: %s: %v", outcome.Group, outcome.Name, outcome.Err)
		case conformance.Missing:
			t.Logf("missing: %s: %s: %v", outcome.Group, outcome.Name, outcome.Err)
		}
	}
	t.Logf("%s: %d passed, %d failed, %d missing", env.Describe().Backend, counts[conformance.Passed],
		counts[conformance.Failed], counts[conformance.Missing])
	total := counts[conformance.Passed] + counts[conformance.Failed] + counts[conformance.Missing]
	if all := len(conformance.Behaviours()); total != all && o.Sample <= 1 || counts[conformance.Passed] == 0 {
		t.Errorf("only %d of %d behaviours were checked, and %d passed", total, all, counts[conformance.Passed])
	}
}
