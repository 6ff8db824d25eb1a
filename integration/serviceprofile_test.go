package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestAHardenedServiceHasNoCapability checks the capabilities of a service's own command, of its health test, and of an
// exec in the service.
func TestAHardenedServiceHasNoCapability(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	const look = "id -u; grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs):' /proc/self/status | cut -f2"
	shows := func(profile string) protocol.Service {
		// The script may run again while the test reads the file, so the script renames the file when it is complete.
		into := func(file string) string { return "(" + look + ") >" + file + ".new; mv " + file + ".new " + file }
		v := withCheck(small(into("/tmp/command")+"; exec sleep 1000"), into("/tmp/test")+"; test -s /tmp/command")
		v.Profile = profile
		return v
	}
	spec := withServices(f, services{"hard": shows(protocol.ProfileHardened),
		"standard": shows(protocol.ProfileStandard)}, services{"default": shows("")})
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(10*time.Second, "the optional service is ready",
		func() error { return serviceIs(f, "s", "default", protocol.ServiceStateReady) })
	// all has Docker's default capabilities without NET_RAW and MKNOD.
	const none, all = "0000000000000000", "00000000a00405fb"
	for name, want := range map[string][]string{
		"hard":     {"0", none, none, none, none, none, "1"},
		"standard": {"0", none, all, all, all, none, "1"},
		"default":  {"0", none, all, all, all, none, "1"},
	} {
		for what, script := range map[string]string{"an exec": look, "the command": "cat /tmp/command",
			"the health test": "cat /tmp/test"} {
			if got := strings.Fields(printedBy(t, ctx, s, name, "sh", "-c", script)); strings.Join(got,
				" ") != strings.Join(want, " ") {
				t.Errorf("%s of %s has %q, want %q", what, name, got, want)
			}
		}
	}
	// Root without capabilities cannot change owners.
	const chown = "touch /tmp/x && chown 1000 /tmp/x 2>/dev/null && echo may || echo cannot"
	if hard, standard := printedBy(t, ctx, s, "hard", "sh", "-c", chown), printedBy(t, ctx, s, "standard", "sh", "-c",
		chown); hard != "cannot" || standard != "may" {
		t.Errorf("change an owner: hardened %s, standard %s", hard, standard)
	}
	got := s.Info().Spec
	if got.RequiredServices["hard"].Profile != protocol.ProfileHardened ||
		got.OptionalServices["default"].Profile != protocol.ProfileStandard {
		t.Errorf("read back: %+v, %+v", got.RequiredServices, got.OptionalServices)
	}
	// After a resume the service is still hardened, and its supervisor can end the service's command.
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if got := printedBy(t, ctx, s, "hard", "sh", "-c", "grep CapBnd /proc/self/status | cut -f2"); got != none {
		t.Errorf("after a resume an exec may have %s", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

// TestAnOperatorMayForbidServicesTheirCapabilities uses a host on which all services must be hardened.
func TestAnOperatorMayForbidServicesTheirCapabilities(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{ServiceProfiles: []string{protocol.ProfileHardened}})
	ctx := f.Context(time.Minute)
	v := small("exec sleep 1000")
	for field, spec := range map[string]protocol.SandboxSpec{
		"spec.required_services.db.profile": withServices(f, services{"db": v}, nil),
		"spec.optional_services.db.profile": withServices(f, nil, services{"db": v}),
	} {
		_, err := f.Client.Create(ctx, spec)
		if e := protocol.AsError(err); err == nil || e.Field != field || e.Code != protocol.PermissionDenied ||
			e.Reason != protocol.ReasonPolicyDenied {
			t.Errorf("%s: %v", field, err)
		}
	}
	if made := f.Objects(""); len(made) != 0 {
		t.Errorf("left: %q", made)
	}
	v.Profile = protocol.ProfileHardened
	if _, err := f.Client.Create(ctx, withServices(f, services{"db": v}, nil)); err != nil {
		t.Errorf("a hardened service: %v", err)
	}
	f.Judge()
}
