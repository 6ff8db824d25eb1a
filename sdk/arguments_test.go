package sdk_test

import (
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func argumentsAreRefusedByTheirField(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(time.Minute)
	for _, name := range []string{"", "a b"} {
		_, err := f.Client.ListPage(ctx, sdk.WithName(name))
		wantField(t, err, "name")
	}
	_, err := f.Client.ListPage(ctx, sdk.WithLabels(map[string]string{"": "x"}))
	wantField(t, err, "labels.")
	_, err = f.Client.ListPage(ctx, sdk.WithLabels(map[string]string{"team": "a\nb"}))
	wantField(t, err, "labels.team")
	_, err = f.Client.Upload(ctx, "", "/x")
	wantField(t, err, "source")
	for _, service := range []string{"A B", "db.x"} {
		_, err = f.Client.Upload(ctx, t.TempDir(), "/x", sdk.WithService(service))
		wantField(t, err, "service")
	}
	_, err = f.Client.Hosts().Get(ctx, "")
	wantField(t, err, "host")
	_, err = f.Client.Images().Wait(ctx, nil, nil)
	wantField(t, err, "image")
	for _, endpoint := range []string{"", "a.b", "no-such-endpoint"} {
		_, err = f.Client.Raw().Query(ctx, endpoint, protocol.Query{})
		wantField(t, err, "endpoint")
	}
	_, err = sdk.Connect(ctx, sdk.Options{Conn: f.Client.Raw().Conn(), RequestTimeout: -1})
	wantField(t, err, "request_timeout")
}

// wantField checks that err refuses an argument and names this field.
func wantField(t *testing.T, err error, field string) {
	t.Helper()
	wantCodeAndField(t, err, protocol.InvalidArgument, field)
}

func wantCodeAndField(t *testing.T, err error, code protocol.Code, field string) {
	t.Helper()
	var typed *sdk.Error
	if !errors.As(err, &typed) || typed.Code != code || typed.Field != field {
		t.Errorf("got %v, want %s naming %s", err, code, field)
	}
}

func anIDThatWasUsedIsNamedAsTheField(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("used")
	_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("used"))
	wantCodeAndField(t, err, protocol.AlreadyExists, "id")
	run := func(opts ...sdk.ExecOption) error {
		_, err := s.Exec(ctx, command("true"), opts...)
		return err
	}
	if err := run(sdk.WithID("x"), sdk.WithRequestID("r")); err != nil {
		t.Fatal(err)
	}
	wantCodeAndField(t, run(sdk.WithID("x")), protocol.AlreadyExists, "id")
	wantCodeAndField(t, run(sdk.WithID("y"), sdk.WithRequestID("r")), protocol.AlreadyExists, "request")
}

func theRawHistoryIsFoundByName(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(time.Minute)
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithName("by-name"))
	if err != nil {
		t.Fatal(err)
	}
	raw := f.Client.Raw()
	byID, err := raw.History(ctx, s.ID(), 0)
	if err != nil || len(byID) == 0 {
		t.Fatalf("by id: %d batches, %v", len(byID), err)
	}
	if byName, err := raw.History(ctx, "by-name", 0); err != nil || len(byName) != len(byID) {
		t.Errorf("by name: %d batches, %v; want %d", len(byName), err, len(byID))
	}
	if none, err := raw.History(ctx, "never-was", 0); err != nil || len(none) != 0 {
		t.Errorf("of an unknown sandbox: %d batches, %v; want none", len(none), err)
	}
}
