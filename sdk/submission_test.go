package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// The client sends the request again while its first copy waits for a majority of the servers. The request is carried
// out.
func TestARequestSurvivesTheLossOfAMajority(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Servers: 3, Workers: -1})
	ctx := f.Context(2 * time.Minute)
	leader := -1
	for i, s := range f.Servers {
		if f.Leads(s, protocol.StreamRequests) {
			leader = i
		}
	}
	if leader < 0 {
		t.Fatal("the queue of requests has no leader")
	}
	const patience = time.Second // short, so that the client sends the request again while no server can store it
	client, err := sdk.Connect(ctx, f.Options(sdk.Options{URL: f.Servers[leader].ClientURL(), RequestTimeout: patience}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i, s := range f.Servers {
		if i != leader {
			s.Stop()
		}
	}
	created := make(chan error, 1)
	go func() {
		_, err := client.Create(ctx, f.Spec(), sdk.WithID("s"), sdk.WithWait(false))
		created <- err
	}()
	select {
	case err := <-created:
		t.Errorf("answered without a majority: %v", err)
		created <- nil
	case <-time.After(4 * patience):
	}
	for i := range f.Servers {
		if i != leader {
			if f.Servers[i], err = f.Servers[i].Restart(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-created; err != nil {
		t.Error(err)
	}
}

func TestARepeatedExtendExtendsOnce(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Extend(ctx, time.Hour, sdk.WithRequestID("r1")); err != nil {
		t.Fatal(err)
	}
	ends := s.Info().ExpiresAt
	if err := s.Extend(ctx, time.Hour, sdk.WithRequestID("r1")); err != nil || !s.Info().ExpiresAt.Equal(ends) {
		t.Errorf("the same request again: %v; the end moved from %s to %s", err, ends, s.Info().ExpiresAt)
	}
	if err := s.Extend(ctx, 2*time.Hour, sdk.WithRequestID("r2")); err != nil ||
		s.Info().ExpiresAt.Before(ends.Add(time.Hour)) {
		t.Errorf("another request: %v; the end moved from %s to %s, want an hour later", err, ends, s.Info().ExpiresAt)
	}
}

// A repeated request gets the same answer as the first request, accepted or refused, even if one client sends both at
// once.
func TestARepeatedRequestIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithWait(false), sdk.WithRequestID("create"))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(code protocol.Code, reason string, call func() error) func() {
		return func() { t.Helper(); wantError(t, call(), code, reason) }
	}
	accepted := func(call func() error) func() {
		return func() {
			t.Helper()
			if err := call(); err != nil {
				t.Error(err)
			}
		}
	}
	submit := func(verb, id string, r protocol.Request) error {
		_, err := f.Client.Raw().Submit(ctx, sdk.Request{Verb: verb, Sandbox: s.ID(), ID: id, Payload: r})
		return err
	}
	for name, call := range map[string]func(){
		"a create": accepted(func() error {
			again, err := f.Client.Create(ctx, f.Spec(), sdk.WithWait(false), sdk.WithRequestID("create"))
			if err == nil && again.ID() != s.ID() {
				t.Errorf("the repeat created %s", again.ID())
			}
			return err
		}),
		"a create with a used id": refused(protocol.AlreadyExists, "", func() error {
			_, err := f.Client.Create(ctx, f.Spec(), sdk.WithWait(false), sdk.WithID(s.ID()), sdk.WithRequestID("other"))
			return err
		}),
		"an exec in a sandbox that is not ready": refused(protocol.FailedPrecondition, protocol.ReasonSandboxNotReady,
			func() error {
				_, err := s.Exec(ctx, command("true"), sdk.WithRequestID("exec"))
				return err
			}),
		"a stop of a sandbox that is not ready": refused(protocol.FailedPrecondition, protocol.ReasonInvalidState,
			func() error {
				return s.Stop(ctx, sdk.WithRequestID("stop"))
			}),
		"a cancel of an unknown exec": refused(protocol.NotFound, "",
			func() error { return s.ExecByID("never").Cancel(ctx, sdk.WithRequestID("cancel")) }),
		"an extend": accepted(func() error {
			return s.Extend(ctx, time.Hour, sdk.WithRequestID("extend"))
		}),
		"another verb with a used id": refused(protocol.AlreadyExists, protocol.ReasonRequestUsed, func() error {
			return s.Stop(ctx, sdk.WithRequestID("create"))
		}),
		"an invalid request": refused(protocol.InvalidArgument, "",
			func() error { return submit(protocol.VerbExtend, "bad", protocol.Request{TTL: -1}) }),
	} {
		t.Run(name, func(t *testing.T) {
			within(t, 5*time.Second, "two calls in turn and two at once", func() {
				call()
				call()
				var both sync.WaitGroup
				both.Go(call)
				both.Go(call)
				both.Wait()
			})
		})
	}
	events, err := f.Client.Raw().History(ctx, s.ID(), 0)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[protocol.Kind]int{}
	for _, b := range events {
		for _, e := range b.Events {
			kinds[e.Kind]++
		}
	}
	if kinds[protocol.SandboxAccepted] != 1 || kinds[protocol.SandboxExtended] != 1 || len(kinds) != 2 {
		t.Errorf("the history holds %v, want one creation and one extension", kinds)
	}
}

// While the log is full, a client that gives up says that the log is full, and new requests are refused without being
// stored.
func TestAFullLogRefusesRequestsAndSaysSo(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	limit := func(bytes int64) {
		t.Helper()
		sdk.ChangeEventLog(ctx, t, f.URL(), f.Unlimited("test").Creds, func(cfg *natsjs.StreamConfig) {
			cfg.Discard, cfg.MaxBytes = natsjs.DiscardNew, bytes
		})
	}
	limit(1)
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := f.Client.Create(short, f.Spec(), sdk.WithID("early"), sdk.WithWait(false))
	if got := protocol.CodeOf(err); got != protocol.DeadlineExceeded && got != protocol.ResourceExhausted {
		t.Errorf("a create while the log is full: %v", err)
	}
	wantError(t, err, protocol.CodeOf(err), protocol.ReasonLogFull)
	f.Eventually(10*time.Second, "a create is refused at once", func() error {
		began := time.Now()
		_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("refused"), sdk.WithWait(false))
		if !errors.Is(err, &protocol.Error{Code: protocol.ResourceExhausted, Reason: protocol.ReasonLogFull}) {
			return fmt.Errorf("%v after %s", err, time.Since(began))
		}
		return nil
	})
	limit(-1)
	if s, err := f.Client.Get(ctx, "refused"); err == nil {
		t.Errorf("the refused sandbox exists: %+v", s.Info())
	}
	f.Eventually(10*time.Second, "creates are accepted again", func() error {
		_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("late"), sdk.WithWait(false))
		return err
	})
	if protocol.CodeOf(err) == protocol.DeadlineExceeded { // the request was stored
		f.Eventually(10*time.Second, "the stored request is carried out", func() error {
			_, err := f.Client.Get(ctx, "early")
			return err
		})
	}
}

// A wait continues while the coordinator is down for a while.
func TestAWaitForAnImageSurvivesACoordinatorOutage(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	c := f.Processes("coordinator")[0]
	c.Stop()
	waited := make(chan error, 1)
	go func() {
		_, err := f.Operator.Images().Wait(ctx, &protocol.WantedImage{Ref: "a/b:c"}, nil)
		waited <- err
	}()
	select {
	case err := <-waited:
		t.Fatalf("the wait ended while no coordinator was running: %v", err)
	case <-time.After(2 * time.Second):
	}
	c.Restart()
	if err := <-waited; err != nil {
		t.Error(err)
	}
}
