package sdk_test

import (
	"context"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// older answers some reads as a coordinator of an earlier version does, until the returned function is called. If
// listed is not nil, ping lists these endpoints.
func older(t *testing.T, f *fleet.Fleet, listed []string) (stop func()) {
	t.Helper()
	conn, err := jetstream.Connect(t.Context(), f.Unlimited("older"))
	if err != nil {
		t.Fatal(err)
	}
	answer := func(r *protocol.Reply) jetstream.Endpoint {
		return func(context.Context, string, *protocol.Query) (*protocol.Reply, error) { return r, nil }
	}
	ping := &protocol.Ping{Coordinator: "c0", Version: "0.9.0", Time: time.Now(), Endpoints: listed}
	endpoints := map[string]jetstream.Endpoint{
		protocol.EndpointPing: answer(&protocol.Reply{Ping: ping}),
		protocol.EndpointGet: answer(&protocol.Reply{Sandbox: &protocol.Sandbox{ID: "s", Tenant: "default", Sequence: 1,
			Record: 1, State: protocol.StatePending}}),
		protocol.EndpointExec: answer(&protocol.Reply{Exec: &protocol.Exec{ID: "x", Sandbox: "s", Tenant: "default",
			Sequence: 1, Record: 1, State: protocol.ExecStateRunning}}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	serving, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if err := conn.ServeReads(ctx, "0.9.0", endpoints, func() { close(serving) }); ctx.Err() == nil {
			t.Errorf("serve: %v", err)
		}
	}()
	<-serving
	return func() { cancel(); <-ended; conn.Close() }
}

// Each way to ask older coordinators for something that they cannot answer ends with an error that names the cause. A
// call that waits is such a way too.
func TestCoordinatorsThatAreTooOldAreNamed(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.MayBeRefused() // a user may not ask for the descriptions of the coordinators
	ctx := f.Context(2 * time.Minute)
	f.Processes("coordinator")[0].Stop()
	calls := map[string]func(c *sdk.Client) error{
		"secrets": func(c *sdk.Client) error { _, err := sdk.ReadAll(c.Secrets().List(ctx)); return err },
		"seal":    func(c *sdk.Client) error { _, err := c.Seal(ctx, "A", "b"); return err },
	}
	unlisted := map[string]func(c *sdk.Client) error{ // endpoints that some coordinators serve without listing them
		"history": func(c *sdk.Client) error { _, err := c.Raw().History(ctx, "s", 0); return err },
		"ready":   func(c *sdk.Client) error { return c.Sandbox("s").WaitReady(ctx) },
		"exec":    func(c *sdk.Client) error { _, err := c.Sandbox("s").ExecByID("x").Wait(ctx); return err },
		"output": func(c *sdk.Client) error {
			for _, err := range c.Sandbox("s").ExecByID("x").Output(ctx, sdk.WithFollow(true)) {
				return err
			}
			return nil
		},
		"checkup": func(c *sdk.Client) error { _, err := c.Checkup(ctx); return err },
	}
	check := func(who string, c *sdk.Client, calls map[string]func(c *sdk.Client) error) {
		t.Helper()
		for name, call := range calls {
			within(t, 10*time.Second, who+": "+name, func() {
				if err := call(c); !protocol.IsNotServed(err) || protocol.CodeOf(err) != protocol.FailedPrecondition {
					t.Errorf("%s: %s: got %v, want that the coordinators are too old", who, name, err)
				}
			})
		}
	}
	stop := older(t, f, nil)
	check("a user, no list", f.Client, calls)
	check("an operator, no list", f.Operator, calls)
	check("an operator, no list", f.Operator, unlisted)
	stop()
	stop = older(t, f, []string{protocol.EndpointExec, protocol.EndpointGet, protocol.EndpointPing})
	check("a user, with a list", f.Client, calls)
	check("a user, with a list", f.Client, unlisted)
	stop()
}

// A coordinator that does not answer yet is no coordinator that is too old: if none answers, or if it lists the
// endpoint, or if the client may not see what an older one serves, the error is unavailable, and the call can be
// repeated.
func TestACoordinatorThatDoesNotAnswerYetIsNotTooOld(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.MayBeRefused()
	ctx := f.Context(time.Minute)
	f.Processes("coordinator")[0].Stop()
	unavailable := func(when string) {
		t.Helper()
		for _, c := range []*sdk.Client{f.Client, f.Operator} {
			if _, err := c.Raw().History(ctx, "s", 0); protocol.CodeOf(err) != protocol.Unavailable {
				t.Errorf("%s: got %v, want unavailable", when, err)
			}
		}
	}
	unavailable("no coordinator runs")
	stop := older(t, f, []string{protocol.EndpointBatches, protocol.EndpointPing})
	unavailable("the coordinator lists the endpoint")
	stop()
	stop = older(t, f, nil)
	if _, err := f.Client.Raw().History(ctx, "s", 0); protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("a user, who cannot see what the coordinator serves: got %v, want unavailable", err)
	}
	stop()
}
