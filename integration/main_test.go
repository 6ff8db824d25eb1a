package integration

import (
	"testing"

	"github.com/boxfleet/boxfleet/integration/fleet"
)

func TestMain(m *testing.M) { fleet.Main(m) }
