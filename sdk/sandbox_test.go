package sdk_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func aRepeatedRequestFindsWhatTheFirstDid(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(2 * time.Minute)
	const nextTry = 30 * time.Second // the client sends a request again after this time
	client, err := sdk.Connect(ctx, f.Options(sdk.Options{RequestTimeout: nextTry}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	first, err := client.Create(ctx, f.Spec(), sdk.WithRequestID("r1"))
	if err != nil {
		t.Fatal(err)
	}
	within(t, nextTry, "a repeated create", func() {
		again, err := client.Create(ctx, f.Spec(), sdk.WithRequestID("r1"))
		if err != nil || again.ID() != first.ID() || again.Info().CreatedAt != first.Info().CreatedAt {
			t.Errorf("got %v, %v; want sandbox %s again", again, err, first.ID())
		}
	})
	_, err = client.Create(ctx, f.Spec(), sdk.WithID(first.ID()))
	wantError(t, err, protocol.AlreadyExists, "")
	spec := shell("echo once; exit 5")
	for range 2 {
		within(t, nextTry, "a repeated exec", func() {
			r, err := first.Exec(ctx, spec, sdk.WithRequestID("r2"))
			if err != nil || *r.ExitCode != 5 || string(r.Stdout) != "once\n" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	if err := first.Refresh(ctx); err != nil || first.Info().TotalExecs != 1 {
		t.Errorf("got %d execs, %v; want one", first.Info().TotalExecs, err)
	}
}

// If a stop or resume is repeated after the opposite request, the repeated request changes nothing and its call does
// not wait.
func aRepeatedStopDoesNotStopAgain(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(time.Minute)
	s, err := f.Client.Create(ctx, f.Spec())
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func() error{
		func() error { return s.Stop(ctx, sdk.WithRequestID("stop")) },
		func() error { return s.Stop(ctx, sdk.WithRequestID("stop-again")) },
		func() error { return s.Resume(ctx, sdk.WithRequestID("resume")) },
		func() error { return s.Stop(ctx, sdk.WithRequestID("stop")) },
		func() error { return s.Stop(ctx, sdk.WithRequestID("stop-again")) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := s.Exec(ctx, command("true"), sdk.WithID("x"), sdk.WithRequestID("exec"))
	if err != nil || *r.ExitCode != 0 {
		t.Errorf("the sandbox no longer runs: %+v, %v", r, err)
	}
	_, err = s.Exec(ctx, command("true"), sdk.WithID("y"), sdk.WithRequestID("exec"))
	wantError(t, err, protocol.AlreadyExists, protocol.ReasonRequestUsed)
}

func changesAreIdempotentAndWaitedFor(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(time.Minute)
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithWait(false))
	if err != nil || s.Info().Sequence == 0 {
		t.Fatalf("%v, %v", s, err)
	}
	if err := s.WaitReady(ctx); err != nil || s.Info().State != protocol.StateReady {
		t.Fatalf("%s, %v", s.Info().State, err)
	}
	other, err := f.Client.Get(ctx, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		verb string
		do   func(*sdk.Sandbox) error
		want protocol.SandboxState
	}{
		{"stop", func(s *sdk.Sandbox) error { return s.Stop(ctx) }, protocol.StateStopped},
		{"resume", func(s *sdk.Sandbox) error { return s.Resume(ctx) }, protocol.StateReady},
		{"delete", func(s *sdk.Sandbox) error { return s.Delete(ctx) }, protocol.StateDeleted},
	} {
		for range 2 {
			if err := step.do(s); err != nil || s.Info().State != step.want {
				t.Errorf("%s: %s, %v", step.verb, s.Info().State, err)
			}
		}
	}
	if err := other.WaitDeleted(ctx); err != nil || other.Info().State != protocol.StateDeleted {
		t.Errorf("a handle made before the delete: %s, %v; want state deleted", other.Info().State, err)
	}
	wantError(t, s.WaitReady(ctx), protocol.FailedPrecondition, protocol.ReasonSandboxDeleted)
	wantError(t, f.Client.Sandbox("never-was").Delete(ctx), protocol.NotFound, "")
}

func aWaitForReadyReturnsTheFailure(t *testing.T, f *fleet.Fleet) {
	ctx, spec := f.Context(time.Minute), f.Spec()
	spec.Mounts = []protocol.Mount{{Source: "/etc", Target: "/data"}}
	_, err := f.Client.Create(ctx, spec, sdk.WithName("failed"))
	// The create is refused at once: no host could ever accept it.
	wantError(t, err, protocol.PermissionDenied, protocol.ReasonMountDenied)
	_, err = f.Client.Get(ctx, "failed")
	wantError(t, err, protocol.NotFound, "")
	spec.Mounts, spec.Command = nil, []string{"/no/such/program"}
	s, err := f.Client.Create(ctx, spec, sdk.WithName("failed"))
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonStartFailed)
	if s == nil || s.Info().State != protocol.StateFailed {
		t.Fatalf("got %v, want the handle of the failed sandbox", s)
	}
	wantError(t, s.WaitReady(ctx), protocol.FailedPrecondition, protocol.ReasonStartFailed)
	wantError(t, s.WaitStopped(ctx), protocol.FailedPrecondition, protocol.ReasonStartFailed)
	if err := s.Delete(ctx); err != nil {
		t.Error(err)
	}
}

func listsHavePagesAndSelectors(t *testing.T, f *fleet.Fleet) {
	ctx, spec := f.Context(time.Minute), f.Spec()
	spec.Labels = map[string]string{"list": "yes"}
	var want []string
	for i := range 5 {
		id := fmt.Sprintf("list-%d", i)
		if _, err := f.Client.Create(ctx, spec, sdk.WithID(id), sdk.WithWait(false)); err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
	}
	var got []string
	for s, err := range f.Client.List(ctx, sdk.WithLabels(spec.Labels), sdk.WithPageSize(2)) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, s.ID())
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	page, err := f.Client.ListPage(ctx, sdk.WithLabels(spec.Labels), sdk.WithStates(sdk.StateStopped))
	if err != nil || len(page.Items) != 0 {
		t.Errorf("stopped sandboxes: %v, %v; want none", page, err)
	}
	_, err = f.Client.DeleteByLabels(ctx, nil)
	wantError(t, err, protocol.InvalidArgument, "")
	deleted, err := f.Client.DeleteByLabels(ctx, spec.Labels)
	if err != nil || len(deleted) != len(want) {
		t.Errorf("deleted %d of %d: %v", len(deleted), len(want), err)
	}
	page, err = f.Client.ListPage(ctx, sdk.WithLabels(spec.Labels))
	if err != nil || len(page.Items) != 0 {
		t.Errorf("after deleting all: %v, %v; want none", page, err)
	}
}
