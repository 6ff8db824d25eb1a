package integration

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/sdk/environment/environmenttest"
	environments "github.com/boxfleet/boxfleet/sdk/environment/fleet"
)

// TestASandboxIsAnEnvironment runs commands as a user who may not do everything.
func TestASandboxIsAnEnvironment(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	spec := f.Spec()
	spec.User, spec.PIDs = "box", 2000
	spec.Memory = 1 << 30
	box, err := f.Client.Create(f.Context(time.Minute), spec, sdk.WithID("environment"))
	if err != nil {
		t.Fatal(err)
	}
	environmenttest.Run(t, environments.New(box), environmenttest.Sample())
}
