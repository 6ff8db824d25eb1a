package auth_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/evidence"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// followed is a sandbox of tenant blue that runs on host HOSTA, and a client of the tenant.
type followed struct {
	t       *testing.T
	id      string
	decider *jetstream.Journal // the journal of a coordinator
	worker  *jetstream.Journal // the journal of the worker of HOSTA
	rogue   *roleConn          // the worker of HOSTB, with credentials of its own
	raw     *nats.Conn         // another connection of the rogue worker
	client  *sdk.Client
}

func newFollowed(t *testing.T) *followed {
	t.Helper()
	ctx := t.Context()
	a, s := newAuthority(t)
	runCoordinator(t, open(t, a, s.ClientURL(), someone(rights.Coordinator, "c1", "", "")), "c1", jetstream.Assets{})
	writer := func(role rights.Role, owner protocol.Owner, name, host string) *roleConn {
		t.Helper()
		c := open(t, a, s.ClientURL(), someone(role, name, "", host))
		if err := c.Open(ctx); err != nil {
			t.Fatal(err)
		}
		if err := c.RegisterWriter(ctx, owner, name, host); err != nil {
			t.Fatal(err)
		}
		return c
	}
	w := &followed{t: t, id: "followed", rogue: writer(rights.Worker, protocol.OwnerWorker, "w2", "HOSTB")}
	journal := func(c *roleConn, name string) *jetstream.Journal {
		return c.Journal(jetstream.JournalConfig{Tenant: "blue", Sandbox: w.id, Writer: name, KeepEnded: 10})
	}
	w.decider = journal(writer(rights.Coordinator, protocol.OwnerCoordinator, "c2", ""), "c2")
	w.worker = journal(writer(rights.Worker, protocol.OwnerWorker, "w1", "HOSTA"), "w1")
	again, err := a.Issue(someone(rights.Worker, "w2", "", "HOSTB"), auth.IssueOptions{Again: true})
	if err != nil {
		t.Fatal(err)
	}
	w.raw = dial(t, s, again).Conn
	user := open(t, a, s.ClientURL(), someone(rights.User, "anna", "blue", ""))
	if w.client, err = sdk.Connect(ctx, sdk.Options{Conn: user.Conn, Tenant: "blue"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.client.Close)
	// All events are in one message, so no coordinator chooses a host.
	w.append(w.decider,
		protocol.Event{Kind: protocol.SandboxAccepted, Request: "r1",
			Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "x"}}},
		protocol.Event{Kind: protocol.SandboxAssigned,
			Details: &protocol.SandboxDetails{Worker: "w1", HostID: "HOSTA", Generation: 1}})
	w.append(w.worker, protocol.Event{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b1"}})
	return w
}

func (w *followed) append(j *jetstream.Journal, events ...protocol.Event) {
	w.t.Helper()
	_, err := j.Do(w.t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return events, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// forge stores a message that the rogue worker made. Its event has the history's next number or a later one.
func (w *followed) forge(number uint64, kind protocol.Kind, state protocol.SandboxState) {
	w.t.Helper()
	b := &protocol.Batch{Version: protocol.Version, Tenant: "blue", Sandbox: w.id, ID: sdk.NewID(), Writer: "c2",
		Events: []protocol.Event{{Sequence: number, Kind: kind, Time: time.Now(), State: state, Reason: "forged"}}}
	m := nats.NewMsg(protocol.AppendSubject("w2", "blue", w.id))
	m.Data = b.Encode()
	if err := w.raw.PublishMsg(m); err != nil {
		w.t.Fatal(err)
	}
}

// follow passes on the events that a client of the tenant sees, from the first one on.
func (w *followed) follow(ctx context.Context) <-chan sdk.Event {
	seen := make(chan sdk.Event, 100)
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	w.t.Cleanup(func() { stop(); <-ended })
	go func() {
		defer close(ended)
		for e, err := range w.client.Sandbox(w.id).Events(ctx, sdk.WithFollow(true)) {
			if err != nil {
				return
			}
			seen <- e
		}
	}()
	return seen
}

// sees checks that the next event comes soon and is not forged.
func (w *followed) sees(seen <-chan sdk.Event, want protocol.Kind, within time.Duration) {
	w.t.Helper()
	select {
	case e := <-seen:
		if e.Kind != want || e.Reason == "forged" {
			w.t.Fatalf("the client sees %s with reason %q, want %s", e.Kind, e.Reason, want)
		}
	case <-time.After(within):
		w.t.Fatalf("the client has not seen %s after %s", want, within)
	}
}

// The server publishes to clients every message that a worker stores in a history. A client believes only messages
// whose writer is proven.
func TestAClientNeverSeesWhatAWorkerOfAnotherHostForges(t *testing.T) {
	t.Parallel()
	w := newFollowed(t)
	seen := w.follow(t.Context())
	for _, kind := range []protocol.Kind{protocol.SandboxAccepted, protocol.SandboxAssigned, protocol.SandboxReady} {
		w.sees(seen, kind, 20*time.Second)
	}
	number, stopped := uint64(3), protocol.SandboxStopRequested
	for i := range 10 {
		w.forge(number+1, protocol.SandboxDeleted, protocol.StateDeleted)
		w.forge(number+5, protocol.SandboxDeleted, protocol.StateDeleted)
		x := "x" + strconv.Itoa(i)
		w.append(w.decider, protocol.Event{Kind: protocol.ExecAccepted, Exec: &protocol.ExecDetails{ID: x,
			Spec: &protocol.ExecSpec{Command: []string{"ps"}}}})
		w.sees(seen, protocol.ExecAccepted, 2*time.Second)
		w.forge(number+2, protocol.SandboxFailed, protocol.StateFailed)
		w.append(w.worker, protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: x, Boot: "b1"}})
		w.sees(seen, protocol.ExecStarted, 2*time.Second)
		number += 2
	}
	for range 1000 {
		w.forge(number+1, protocol.SandboxDeleted, protocol.StateDeleted)
	}
	if err := w.raw.Flush(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w.append(w.decider, protocol.Event{Kind: stopped})
	appended := time.Now()
	w.sees(seen, stopped, 10*time.Second)
	t.Logf("after 1000 forgeries: %s to append an event, %s more until the client saw it", appended.Sub(began),
		time.Since(appended))
}

// The raw layer delivers live batches only after the same check.
func TestTheRawLayerOfAClientDeliversNoForgedBatch(t *testing.T) {
	t.Parallel()
	w := newFollowed(t)
	batches := make(chan *protocol.Batch, 10)
	stop, err := w.client.Raw().Live(w.id, func(b *protocol.Batch) { batches <- b })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := w.client.Raw().Conn().Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.forge(4, protocol.SandboxDeleted, protocol.StateDeleted)
	w.append(w.decider, protocol.Event{Kind: protocol.SandboxStopRequested})
	w.append(w.worker, protocol.Event{Kind: protocol.SandboxStopped})
	for _, want := range []protocol.Kind{protocol.SandboxStopRequested, protocol.SandboxStopped} {
		select {
		case b := <-batches:
			if b.Events[0].Kind != want {
				t.Fatalf("got %s with reason %q, want %s", b.Events[0].Kind, b.Events[0].Reason, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s does not arrive", want)
		}
	}
}

// A client reads the stored history as evidence, and the evidence names the forged messages.
func TestEvidenceOfAStoredHistoryNamesWhatWasForged(t *testing.T) {
	t.Parallel()
	w := newFollowed(t)
	w.forge(4, protocol.SandboxDeleted, protocol.StateDeleted)
	if err := w.raw.Flush(); err != nil {
		t.Fatal(err)
	}
	w.append(w.decider, protocol.Event{Kind: protocol.SandboxStopRequested})
	eventually.Holds(t, 10*time.Second, "the coordinator reports that it refused a message", func() bool {
		ping, err := w.client.Ping(t.Context())
		return err == nil && ping.Refused > 0
	})
	e, err := w.client.Sandbox(w.id).Evidence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := evidence.Check(e)
	if r.Valid || r.Proven != 3 || r.Refused != 1 || len(r.Problems) != 0 || r.Sequence != 4 {
		t.Fatalf("got %+v", r)
	}
	for i, want := range []string{"proven", "proven", "refused", "proven"} {
		if got := r.Messages[i]; string(got.Result) != want {
			t.Errorf("message %d is %s because %q, want %s", i, got.Result, got.Why, want)
		}
	}
	var writers []string
	for _, s := range r.Writers {
		writers = append(writers, fmt.Sprintf("%s %s %s %d", s.Role, s.Name, s.Host, s.Messages))
	}
	if got, want := fmt.Sprint(writers), "[coordinator c2  2 worker w1 HOSTA 1]"; got != want {
		t.Errorf("the writers are %s, want %s", got, want)
	}
	if _, err := w.client.Sandbox("unknown").Evidence(t.Context()); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("evidence of an unknown sandbox: %v, want not_found", err)
	}
}
