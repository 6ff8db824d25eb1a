package integration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestTheFleetsKeyIsReplacedBesideALivingSandbox follows docs/secrets.md, and then removes the old key too early.
func TestTheFleetsKeyIsReplacedBesideALivingSandbox(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Secrets: true, Coordinators: 2})
	ctx := f.Context(3 * time.Minute)
	k := keeper{t, f.Client}
	k.set("db", "first")
	spec := f.Spec()
	spec.Secrets = []protocol.SecretUse{{Name: "db", Env: "DB"}}
	spec.SensitiveEnv = k.variables("TOKEN", "sealed-before")
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	running, err := s.Start(ctx, withDB(0,
		"echo begun; while [ ! -e /tmp/enough ]; do sleep 0.1; done; echo $DB $TOKEN $OWN"))
	if err != nil {
		t.Fatal(err)
	}
	printed(t, ctx, running) // it has its values, so later versions do not change them
	prints := func(when string, in *sdk.Sandbox, version uint64, want string) {
		t.Helper()
		if got := mustExec(ctx, t, in, withDB(version, "echo $DB $TOKEN $OWN")); got != want+"\n" {
			t.Errorf("%s: an exec prints %q, want %q", when, got, want)
		}
	}
	keepEarlier := fleet.ReplaceSecretsKey(f)
	restart(f, "coordinator", "c1")
	k.set("db", "second")
	prints("one coordinator has the new key", s, 0, "first sealed-before second")
	restart(f, "coordinator", "c2")
	restart(f, "worker", "w1")
	k.set("db", "third")
	prints("all have the new key", s, 0, "first sealed-before third")
	prints("a version that is sealed to the old key", s, 1, "first sealed-before first")
	spec.SensitiveEnv = k.variables("TOKEN", "sealed-after")
	later, err := f.Client.Create(ctx, spec, sdk.WithID("later"))
	if err != nil {
		t.Fatal(err)
	}
	prints("a new sandbox", later, 2, "third sealed-after second")

	keepEarlier(false)
	restart(f, "coordinator", "c1", "c2")
	prints("the old key is gone", s, 0, "first sealed-before third")
	waits := waitsForTheKey(ctx, t, f, s)
	keepEarlier(true)
	restart(f, "coordinator", "c1", "c2")
	if r, err := waits.Wait(ctx); err != nil || string(r.Stdout) != "first\n" {
		t.Errorf("an exec that waited for the key prints %+v, %v", r, err)
	}
	if _, err := s.Exec(ctx, script("touch /tmp/enough")); err != nil {
		t.Fatal(err)
	}
	if r, err := running.Wait(ctx); err != nil || string(r.Stdout) != "begun\nfirst sealed-before first\n" {
		t.Errorf("the exec that ran all the time prints %+v, %v", r, err)
	}
}

// withDB returns an exec with a version of the secret db in the variable OWN. Version 0 is the newest.
func withDB(version uint64, text string) protocol.ExecSpec {
	x := script(text)
	x.Secrets = []protocol.SecretUse{{Name: "db", Version: version, Env: "OWN"}}
	return x
}

// restart ends processes, one after another, and starts each again.
func restart(f *fleet.Fleet, role string, names ...string) {
	f.TB.Helper()
	for _, p := range f.Processes(role) {
		if slices.Contains(names, p.Name) {
			p.Stop()
			p.Restart()
		}
	}
}

// waitsForTheKey starts an exec whose secret is sealed to a key that no coordinator has, and returns when the worker
// has heard why.
func waitsForTheKey(ctx context.Context, t *testing.T, f *fleet.Fleet, s *sdk.Sandbox) *sdk.Exec {
	t.Helper()
	x, err := s.Start(ctx, withDB(1, "echo $OWN"))
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(30*time.Second, "the worker hears that no coordinator has the key", func() error {
		if !strings.Contains(f.Processes("worker")[0].Log(), protocol.ReasonNoFleetKey) {
			return errors.New("its log does not say so")
		}
		return nil
	})
	return x
}
