package integration

import (
	"flag"
	"testing"

	"github.com/boxfleet/boxfleet/integration/fleet"
)

func TestMain(m *testing.M) {
	// Fleets wait most of the time, for timeouts and for engines, so that one more at once than the small
	// machines have cores is soon over. The flag -parallel goes over it.
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	fleet.Main(m)
}
