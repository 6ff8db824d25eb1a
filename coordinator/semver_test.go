package coordinator

import (
	"testing"
)

func TestTheServiceReportsTheVersionOfTheBuild(t *testing.T) {
	t.Parallel()
	for build, want := range map[string]string{
		"": "0.0.0", "1.2.3": "1.2.3", "v1.2.3": "1.2.3", "v0.4.0-17-gb21cf4b-dirty": "0.4.0-17-gb21cf4b-dirty",
		"b21cf4b": "0.0.0+b21cf4b", "dev": "0.0.0+dev", "1.2": "0.0.0+1-2", "v1.02.3": "0.0.0+v1-02-3",
		"1.2.3.4": "0.0.0+1-2-3-4", "über": "0.0.0+ber", "??": "0.0.0",
	} {
		got := semver(build)
		if got != want || !semverPattern.MatchString(got) {
			t.Errorf("build %q has the version %s, want %s", build, got, want)
		}
	}
}
