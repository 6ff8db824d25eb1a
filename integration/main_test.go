package integration

import (
	"flag"
	"testing"

	"github.com/boxfleet/boxfleet/integration/fleet"
)

func TestMain(m *testing.M) {
	// Fleets spend most of their time waiting for timeouts and for engines. On small machines the suite therefore
	// finishes sooner with more parallel tests than cores. The flag -parallel overrides this number.
	if err := flag.Set("test.parallel", "5"); err != nil {
		panic(err)
	}
	fleet.Main(m)
}
