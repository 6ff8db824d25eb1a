package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestSandboxesWaitForTheFleetsKey takes the key away from the only coordinator. A sandbox and an exec that need a
// secret wait, and say why, until the key is back.
func TestSandboxesWaitForTheFleetsKey(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Secrets: true})
	ctx := f.Context(3 * time.Minute)
	keeper{t, f.Client}.set("db", "first")
	ready, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("ready"))
	if err != nil {
		t.Fatal(err)
	}
	giveBack := fleet.TakeSecretsKey(f)
	restart(f, "coordinator", "c1")
	create := func(id string, timeout time.Duration) *sdk.Sandbox {
		t.Helper()
		spec := f.Spec()
		spec.Secrets = []protocol.SecretUse{{Name: "db", Env: "DB"}}
		spec.CreateTimeout = protocol.Duration(timeout)
		s, err := f.Client.Create(ctx, spec, sdk.WithID(id), sdk.WithWait(false))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	patient, hasty := create("patient", 10*time.Minute), create("hasty", 30*time.Second)
	x, err := ready.Start(ctx, withDB(0, "echo $OWN"))
	if err != nil {
		t.Fatal(err)
	}
	explains := func(s *sdk.Sandbox, want string) {
		t.Helper()
		f.Eventually(time.Minute, "the sandbox's explanation names the key", func() error {
			e, err := s.Explain(ctx)
			if err == nil && !(strings.Contains(e.Waiting, want) && strings.Contains(e.Waiting, "lacks the fleet key")) {
				err = errors.New(e.Waiting)
			}
			return err
		})
	}
	explains(patient, "worker w1 prepares it")
	explains(ready, "1 execs are accepted and not started")
	checkup, err := f.Client.Checkup(ctx)
	if err != nil || len(checkup.Sealed) != 1 || !checkup.Sealed[0].Missing || checkup.Sealed[0].Versions != 1 {
		t.Errorf("the checkup says %+v, %v", checkup, err)
	}
	if why := protocol.AsError(hasty.WaitReady(ctx)); why == nil || why.Reason != protocol.ReasonCreateTimeout ||
		why.Field != "spec.secrets[0]" || !strings.Contains(why.Message, "no coordinator that has a fleet key") {
		t.Errorf("a create without the key ends with %v", why)
	}

	giveBack()
	restart(f, "coordinator", "c1")
	if err := patient.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, patient, script("echo $DB")); got != "first\n" {
		t.Errorf("the sandbox that waited has the value %q", got)
	}
	if r, err := x.Wait(ctx); err != nil || string(r.Stdout) != "first\n" {
		t.Errorf("the exec that waited: %v, %v", fmt.Sprintf("%+v", r), err)
	}
}
