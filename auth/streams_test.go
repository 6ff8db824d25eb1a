package auth_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/stream"
)

// echoes serves streams that send back what they receive. opened gets each request and may be nil.
func echoes(opened func(*jetstream.StreamRequest)) jetstream.StreamHandler {
	return func(_ context.Context, r *jetstream.StreamRequest) (*jetstream.StreamAnswer, error) {
		if opened != nil {
			opened(r)
		}
		return &jetstream.StreamAnswer{Serve: func(_ context.Context, c *stream.Conn) error {
			return second(io.Copy(c, c))
		}}, nil
	}
}

// serveStreams serves streams as a worker until the test ends or stop is called.
func serveStreams(t *testing.T, c *jetstream.Conn, worker string, opened func(*jetstream.StreamRequest)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	serving, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.ServeStreams(ctx, worker, echoes(opened), jetstream.StreamLimits{}, func() { close(serving) })
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(stop)
	select {
	case <-serving:
	case err := <-ended:
		t.Fatalf("the service ended: %v", err)
	}
	return stop
}

// hears opens a stream to sandbox s1 of tenant blue, and checks that the worker sends back what it receives.
func hears(ctx context.Context, c *jetstream.Conn, worker string, bulk bool) error {
	conn, _, err := c.OpenStream(ctx, jetstream.StreamTarget{Tenant: "blue", Worker: worker, Sandbox: "s1"},
		protocol.StreamOpen{Kind: "echo", Timeout: protocol.Duration(5 * time.Second), Bulk: bulk})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // returns no error
	return says(ctx, conn, "hello")
}

func says(ctx context.Context, conn *stream.Conn, text string) error {
	defer context.AfterFunc(ctx, func() { conn.Reset(ctx.Err()) })()
	if _, err := conn.Write([]byte(text)); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("%q came back instead of %q", got, text)
	}
	return nil
}

func TestUsersAndOperatorsOpenStreamsAndViewersDoNot(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	worker := open(t, a, s.ClientURL(), someone(rights.Worker, "w1", "", "HOSTA"))
	users := make(chan string, 10)
	serveStreams(t, worker.Conn, "w1", func(r *jetstream.StreamRequest) { users <- r.Tenant + "." + r.User })
	for who, id := range map[string]rights.Identity{
		"blue.anna":  someone(rights.User, "anna", "blue", ""),
		"blue.@otto": someone(rights.Operator, "otto", "", ""),
	} {
		c := open(t, a, s.ClientURL(), id)
		for _, bulk := range []bool{false, true} {
			if err := hears(t.Context(), c.Conn, "w1", bulk); err != nil {
				t.Errorf("%s: %v", who, err)
			} else if told := <-users; told != who {
				t.Errorf("the worker was told %s instead of %s", told, who)
			}
		}
		if refused := c.refusals(t); len(refused) > 0 {
			t.Errorf("the server refuses %s %q", who, refused)
		}
		if err := hears(t.Context(), c.Conn, "w9", false); protocol.AsError(err).Reason != protocol.ReasonNoWorker {
			t.Errorf("%s: a worker that does not run: got %v", who, err)
		}
	}
	if refused := worker.refusals(t); len(refused) > 0 {
		t.Errorf("the server refuses the worker %q", refused)
	}
	for _, id := range []rights.Identity{
		someone(rights.Viewer, "vera", "blue", ""), someone(rights.FleetViewer, "screen", "", ""),
		someone(rights.User, "bob", "green", ""),
	} {
		err := hears(t.Context(), open(t, a, s.ClientURL(), id).Conn, "w1", false)
		if protocol.CodeOf(err) != protocol.PermissionDenied {
			t.Errorf("%s %s: got %v", id.Role, id.Name, err)
		}
	}
}

// TestNobodyReachesTheStreamOfAnother lets everybody who should not reach a stream try it, with its id.
func TestNobodyReachesTheStreamOfAnother(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	ids := make(chan string, 1)
	serveStreams(t, open(t, a, s.ClientURL(), someone(rights.Worker, "w1", "", "HOSTA")).Conn, "w1",
		func(r *jetstream.StreamRequest) { ids <- r.Open.ID })
	anna := open(t, a, s.ClientURL(), someone(rights.User, "anna", "blue", ""))
	conn, _, err := anna.OpenStream(t.Context(), jetstream.StreamTarget{Tenant: "blue", Worker: "w1", Sandbox: "s1"},
		protocol.StreamOpen{Kind: "echo", Timeout: protocol.Duration(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Reset(nil)
	id := <-ids
	open := protocol.StreamOpenSubject("w1", "blue", "anna", "s1")
	up, down := protocol.StreamUpSubject("w1", "blue", "anna", "s1", id), protocol.StreamDownSubject("w1", "blue", "anna",
		"s1", id)
	for _, who := range []rights.Identity{
		someone(rights.User, "ben", "blue", ""), someone(rights.User, "anna", "green", ""),
		someone(rights.Viewer, "vera", "blue", ""), someone(rights.FleetViewer, "screen", "", ""),
		someone(rights.Operator, "otto", "", ""), someone(rights.Worker, "w2", "", "HOSTB"),
	} {
		c := dial(t, s, issue(t, a, who))
		for _, subject := range []string{open, up, down} {
			if c.mayPublish(t, subject) {
				t.Errorf("%s %s may publish to %s", who.Role, who.Name, subject)
			}
			if c.maySubscribe(t, subject) {
				t.Errorf("%s %s may subscribe to %s", who.Role, who.Name, subject)
			}
		}
		for _, all := range []string{"boxfleet.v1.stream.>", "boxfleet.v1.stream.down.*.*.*.*.*", "boxfleet.v1.>", ">"} {
			if c.maySubscribe(t, all) {
				t.Errorf("%s %s may subscribe to %s", who.Role, who.Name, all)
			}
		}
	}
	if err := says(t.Context(), conn, "still alone"); err != nil {
		t.Error(err)
	}
}

// TestNoAnswerPassesAsAFrameToAnotherAccount names the subject of a stream's frames as the reply subject of questions.
// The answers stay in the account of the sender. Inside one account, only the random id of a stream keeps others from
// naming its subject.
func TestNoAnswerPassesAsAFrameToAnotherAccount(t *testing.T) {
	t.Parallel()
	for form, w := range worlds(t) {
		t.Run(form, func(t *testing.T) {
			got := make(chan string, 10)
			hear := func(c *client, subject string, does nats.MsgHandler) {
				t.Helper()
				if _, err := c.Subscribe(subject, does); err != nil {
					t.Fatal(err)
				}
			}
			up, down := protocol.StreamUpSubject("w1", "green", "otto", "s1", "ID"), protocol.StreamDownSubject("w1", "blue",
				"anna", "s1", "ID")
			arrived := func(m *nats.Msg) { got <- m.Subject }
			hear(w.worker, protocol.StreamUpSubject("w1", "*", "*", "*", "*"), arrived)
			hear(w.user, down, arrived)
			answers := func(m *nats.Msg) {
				if err := m.Respond([]byte("answer")); err != nil {
					t.Error(err)
				}
			}
			hear(w.coordinator, "boxfleet.v1.api.*.*.*", answers)
			hear(w.worker, protocol.StreamOpenSubject("w1", "*", "*", "*"), answers)
			for _, c := range []*client{w.worker, w.user, w.coordinator} {
				if refused := c.refusals(t); len(refused) > 0 {
					t.Fatal(refused)
				}
			}
			const read, awaited = "boxfleet.v1.api.blue.anna.get", "boxfleet.v1.api.default.@w1.awaited"
			opens := protocol.StreamOpenSubject("w1", "blue", "anna", "s1")
			for subject, asks := range map[string]*client{read: w.user, opens: w.user, awaited: w.worker} {
				reply := up
				if asks == w.worker {
					reply = down
				}
				if err := asks.PublishRequest(subject, reply, nil); err != nil {
					t.Fatal(err)
				}
			}
			// Once these questions are answered, the earlier ones have been answered too.
			ask(t, w.user, "_INBOX.blue.anna.last", read, "")
			ask(t, w.user, "_INBOX.blue.anna.end", opens, "")
			ask(t, w.worker, "_INBOX.@w1.last", awaited, "")
			w.worker.refusals(t)
			w.user.refusals(t)
			if len(got) > 0 {
				t.Errorf("an answer arrived as a frame on %s", <-got)
			}
		})
	}
}
