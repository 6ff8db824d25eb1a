package sdk_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func ensureFindsResumesOrCreates(t *testing.T, f *fleet.Fleet) {
	ctx, spec := f.Context(2*time.Minute), f.Spec()
	spec.Env = map[string]string{"A": "1"}
	ensure := func(want string) *sdk.Sandbox {
		t.Helper()
		s, err := f.Client.Ensure(ctx, "desk", spec)
		if err != nil || s.Info().State != protocol.StateReady || s.Info().Name != "desk" || want != "" && s.ID() != want {
			t.Fatalf("got %+v, %v; want sandbox %q, ready", s, err, want)
		}
		return s
	}
	first := ensure("")
	ensure(first.ID())
	other := spec
	other.Env = map[string]string{"A": "another value"}
	s, err := f.Client.Ensure(ctx, "desk", other)
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonSpecDiffers)
	if s != nil || protocol.AsError(err).Field != "spec.env.A" || strings.Contains(err.Error(), "another value") {
		t.Errorf("another spec: %v, %v", s, err)
	}
	if err := first.Stop(ctx, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	ensure(first.ID()) // waits for the end of the stop
	if err := first.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	s, err = f.Client.Ensure(ctx, "desk", spec, sdk.WithWait(false))
	if err != nil || s.ID() != first.ID() || s.Info().Desired != protocol.StateReady {
		t.Errorf("not waiting for a stopped sandbox: %+v, %v", s, err)
	}
	if err := first.Delete(ctx, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	if second := ensure(""); second.ID() == first.ID() {
		t.Error("a sandbox that was being deleted was returned")
	} else if err := second.Delete(ctx); err != nil {
		t.Error(err)
	}
}

// A sandbox that fails while Ensure waits ends the call. The next call replaces the sandbox.
func ensureReturnsWhyItsSandboxFailed(t *testing.T, f *fleet.Fleet) {
	ctx, spec := f.Context(2*time.Minute), f.Spec()
	spec.Command = []string{"/no/such/program"}
	s, err := f.Client.Ensure(ctx, "broken", spec)
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonStartFailed)
	if s == nil || s.Info().State != protocol.StateFailed {
		t.Fatalf("got %v, want the handle of the failed sandbox", s)
	}
	spec.Command = nil
	again, err := f.Client.Ensure(ctx, "broken", spec)
	if err != nil || again.ID() == s.ID() {
		t.Fatalf("after a failure: %v, %v; want a new sandbox", again, err)
	}
	if err := again.Delete(ctx); err != nil {
		t.Error(err)
	}
}

// Nothing runs the sandbox, so Ensure waits for it.
func TestEnsureReplacesASandboxThatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	done := make(chan *sdk.Sandbox, 1)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		got, err := f.Client.Ensure(waiting, "web", f.Spec())
		wantError(t, err, protocol.Cancelled, "")
		done <- got
	}()
	next := func(before string) (id string) {
		t.Helper()
		f.Eventually(20*time.Second, "a sandbox waits", func() error {
			for s, err := range f.Client.List(ctx, sdk.WithName("web"), sdk.WithStates(sdk.StatePending)) {
				if id = s.ID(); err == nil && id != before {
					return nil
				}
			}
			return fmt.Errorf("there is none")
		})
		return id
	}
	first := next("")
	if err := f.Client.Sandbox(first).Delete(ctx); err != nil {
		t.Fatal(err)
	}
	second := next(first)
	cancel()
	if got := <-done; got != nil && got.ID() != second {
		t.Errorf("got %s; want %s, which replaced %s", got.ID(), second, first)
	}
}

func clientsThatEnsureAtOnceGetOneSandbox(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(2 * time.Minute)
	const n = 10
	clients := make([]*sdk.Client, n)
	for i := range clients {
		var err error
		if clients[i], err = sdk.Connect(ctx, f.Options(sdk.Options{})); err != nil {
			t.Fatal(err)
		}
		defer clients[i].Close()
	}
	for round := range 3 {
		found := make([]*sdk.Sandbox, n)
		var all sync.WaitGroup
		for i, c := range clients {
			all.Go(func() {
				var err error
				if found[i], err = c.Ensure(ctx, "crowd", f.Spec()); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		for _, s := range found {
			if s.ID() != found[0].ID() || s.Info().State != protocol.StateReady {
				t.Fatalf("round %d: got %s (%s) and %s", round, s.ID(), s.Info().State, found[0].ID())
			}
		}
		// The next round begins while the sandbox is being deleted.
		if err := found[0].Delete(ctx, sdk.WithWait(round == 2)); err != nil {
			t.Fatal(err)
		}
	}
	all, err := sdk.ReadAll(f.Client.List(ctx, sdk.WithName("crowd"), sdk.WithStates(sdk.StatePending,
		sdk.StateReady, sdk.StateFailed, sdk.StateDeleting, sdk.StateDeleted)))
	if err != nil || len(all) != 3 {
		t.Errorf("%d sandboxes were created in 3 rounds, %v", len(all), err)
	}
}

// A coordinator dies before it answers. The client's request is decided again and finds the sandbox that its first
// decision created or found.
func TestEnsureSurvivesALostAnswer(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"create-before-name", "create-before-reserve", "create-before-append",
		"create-before-answer", "create-before-ack"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			f := fleet.Start(t, fleet.Options{Coordinators: -1, Workers: -1})
			c := f.Coordinator("c1", fleet.Role{CrashAt: at})
			f.Connect()
			ctx := f.Context(2 * time.Minute)
			type outcome struct {
				s   *sdk.Sandbox
				err error
			}
			const n = 2
			done := make(chan outcome, n)
			for range n {
				go func() {
					s, err := f.Client.Ensure(ctx, "web", f.Spec(), sdk.WithWait(false))
					done <- outcome{s, err}
				}()
			}
			c.AwaitKilled(20 * time.Second)
			f.Coordinator("c2", fleet.Role{})
			ids := map[string]bool{}
			for range n {
				o := <-done
				if o.err != nil {
					t.Fatal(o.err)
				}
				ids[o.s.ID()] = true
			}
			all, err := sdk.ReadAll(f.Client.List(ctx, sdk.WithName("web")))
			if err != nil || len(all) != 1 || len(ids) != 1 || !ids[all[0].ID()] {
				t.Errorf("the calls return %v; %d sandboxes have the name, %v", ids, len(all), err)
			}
		})
	}
}

// A client may ensure a name from a file, in which an id makes no sense.
func TestEnsureTakesADocument(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	document := []byte("name: other\nimage: boxfleet/demo:busybox\nenv: {A: '1'}\n")
	s, err := f.Client.Ensure(ctx, "web", sdk.SandboxSpec{CPU: 2}, sdk.WithYAML(document, nil), sdk.WithWait(false))
	if err != nil || s.Info().Name != "web" || s.Info().Spec.Env["A"] != "1" || s.Info().Spec.CPU != 2 {
		t.Fatalf("%+v, %v", s, err)
	}
	_, err = f.Client.Ensure(ctx, "web", sdk.SandboxSpec{}, sdk.WithYAML(append(document, "id: one\n"...), nil))
	wantField(t, err, "id")
	_, err = f.Client.Ensure(ctx, "not a name", f.Spec())
	wantField(t, err, "name")
	if _, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("box"), sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "ensuring a name that is an id", func() {
		_, err = f.Client.Ensure(ctx, "box", f.Spec())
		wantError(t, err, protocol.AlreadyExists, protocol.ReasonNameIsID)
	})
}
