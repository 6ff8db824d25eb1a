package sdk_test

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// A handle made from a name stays with the sandbox that had the name when the handle was first used.
func aNameFindsItsSandbox(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(2 * time.Minute)
	first, err := f.Client.Create(ctx, f.Spec(), sdk.WithName("web"))
	if err != nil || first.Info().Name != "web" || !protocol.IsGeneratedID(first.ID()) {
		t.Fatalf("%+v, %v", first.Info(), err)
	}
	_, err = f.Client.Create(ctx, f.Spec(), sdk.WithName("web"))
	wantError(t, err, protocol.AlreadyExists, protocol.ReasonNameTaken)
	handle := f.Client.Sandbox("web")
	if r, err := handle.Exec(ctx, shell("echo hello")); err != nil || string(r.Stdout) != "hello\n" ||
		handle.ID() != first.ID() {
		t.Fatalf("an exec by name, in %s: %+v, %v", handle.ID(), r, err)
	}
	for e, err := range f.Client.Sandbox("web").Events(ctx) {
		if err != nil || e.Sandbox != first.ID() {
			t.Fatalf("events by name: %+v, %v", e, err)
		}
	}
	if _, err := f.Client.Get(ctx, first.ID()[:24]); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("a prefix of an id without IDPrefixes: %v, want not_found", err)
	}
	typing, err := sdk.Connect(ctx, f.Options(sdk.Options{IDPrefixes: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer typing.Close()
	if found, err := typing.Get(ctx, first.ID()[:24]); err != nil || found.ID() != first.ID() {
		t.Errorf("a prefix of an id with IDPrefixes: %v, %v", found, err)
	}
	if err := f.Client.Sandbox("web").Delete(ctx); err != nil {
		t.Fatal(err)
	}
	second, err := f.Client.Create(ctx, f.Spec(), sdk.WithName("web"))
	if err != nil {
		t.Fatal(err)
	}
	if err := handle.Delete(ctx); err != nil { // deletes the first sandbox
		t.Error(err)
	}
	if found, err := f.Client.Get(ctx, "web"); err != nil || found.ID() != second.ID() ||
		found.Info().State != protocol.StateReady {
		t.Errorf("web is %+v, %v; want the second sandbox, ready", found.Info(), err)
	}
	page, err := f.Client.ListPage(ctx, sdk.WithName("web"))
	if err != nil || len(page.Items) != 1 {
		t.Errorf("list by name: %+v, %v", page, err)
	}
	if err := second.Delete(ctx); err != nil {
		t.Error(err)
	}
}
