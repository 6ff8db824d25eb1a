package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// bus returns a NATS connection without the SDK.
func bus(f *fleet.Fleet) (*nats.Conn, jetstream.JetStream) {
	f.TB.Helper()
	nc, err := f.NATS("test")
	if err != nil {
		f.TB.Fatal(err)
	}
	f.TB.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		f.TB.Fatal(err)
	}
	return nc, js
}

// ask publishes a request as a client without the SDK does, and waits for the answer. duplicate means that the server
// dropped the request as a repeat. In this case there is no answer.
func ask(
	ctx context.Context, f *fleet.Fleet, nc *nats.Conn, js jetstream.JetStream, m *nats.Msg, id string,
) (answer *nats.Msg, duplicate bool) {
	f.TB.Helper()
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		f.TB.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only while the connection is closing
	if m.Header == nil {
		m.Header = nats.Header{}
	}
	m.Header.Set(protocol.HeaderReply, inbox)
	ack, err := js.PublishMsg(ctx, m, jetstream.WithMsgID(id))
	if err != nil {
		f.TB.Fatalf("publish to %s: %v", m.Subject, err)
	}
	if ack.Duplicate {
		return nil, true
	}
	answer, err = sub.NextMsgWithContext(ctx)
	if err != nil {
		f.TB.Fatalf("no answer to %s: %v", m.Subject, err)
	}
	return answer, false
}

// used fails the test unless the fleet refuses to use any of the ids again.
func used(ctx context.Context, t *testing.T, f *fleet.Fleet, when string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID(id))
		wantError(t, "id "+id+" again "+when, err, protocol.AlreadyExists, "", "")
		other := f.Spec()
		other.Image = "another/image"
		_, err = f.Client.Create(ctx, other, sdk.WithID(id), sdk.WithRequestID("r-"+id))
		wantError(t, "id "+id+" again by its request id with another spec "+when, err, protocol.AlreadyExists, "", "")
	}
}

func TestAnIDIsNeverUsedAgain(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, Coordinators: -1, CleanupTTL: 3 * time.Second})
	c := f.Coordinator("c1", fleet.Role{})
	f.Connect()
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(90 * time.Second)
	for _, id := range []string{"one", "two"} {
		if _, err := f.Client.Create(ctx, f.Spec(), sdk.WithID(id), sdk.WithRequestID("r-"+id)); err != nil {
			t.Fatal(err)
		}
	}
	one, two := f.Client.Sandbox("one"), f.Client.Sandbox("two")
	used(ctx, t, f, "while the sandbox exists", "one")

	mustExec(ctx, t, two, script("true"))
	if _, err := two.Exec(ctx, script("true"), sdk.WithID("x")); err != nil {
		t.Fatal(err)
	}
	_, err := two.Exec(ctx, script("true"), sdk.WithID("x"))
	wantError(t, "exec id x again", err, protocol.AlreadyExists, "", "")

	if err := one.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	used(ctx, t, f, "after the delete", "one")

	w.Stop()
	c.Stop()
	f.Servers[0].Stop()
	if f.Servers[0], err = f.Servers[0].Restart(); err != nil {
		t.Fatal(err)
	}
	c = c.Restart()
	w.Restart()
	used(ctx, t, f, "after a restart of everything", "one", "two")
	_, again := two.Exec(ctx, script("true"), sdk.WithID("x"))
	wantError(t, "exec id x again after a restart of everything", again, protocol.AlreadyExists, "", "")

	if err := two.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	f.Eventually(20*time.Second, "the histories are purged", func() error {
		for _, id := range []string{"one", "two"} {
			if batches, err := f.Client.Raw().History(ctx, id, 0); err != nil || len(batches) != 1 {
				return fmt.Errorf("%s: %d messages, %v", id, len(batches), err)
			}
		}
		return nil
	})
	used(ctx, t, f, "after the retention", "one", "two")
	c.Kill()
	c.Restart()
	used(ctx, t, f, "after the retention and a restart", "one", "two")
	f.Judge()
}

func TestARepeatedRequestGetsTheSameHandle(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Duplicates: 500 * time.Millisecond})
	ctx := f.Context(time.Minute)
	first, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("s"), sdk.WithRequestID("r1"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := sdk.Connect(ctx, f.Options(sdk.Options{})) // this client has sent none of the requests
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	repeat := func(when string) {
		t.Helper()
		s, err := other.Create(ctx, f.Spec(), sdk.WithID("s"), sdk.WithRequestID("r1"))
		if err != nil || s.Info().Container != first.Info().Container || s.Info().Request != "r1" {
			t.Errorf("the request again %s: %v", when, err)
		}
		r, err := other.Sandbox("s").Exec(ctx, script("echo x >> /tmp/runs; wc -l < /tmp/runs"), sdk.WithID("x"),
			sdk.WithRequestID("r2"))
		if err != nil || string(r.Stdout) != "1\n" {
			t.Errorf("the exec's request again %s: %v, %q", when, err, r.Stdout)
		}
	}
	repeat("at once")
	repeat("within the window")

	// After the deduplication window, the server no longer recognizes the repeated requests. Boxfleet must recognize
	// them by the ids that it has stored.
	nc, js := bus(f)
	spec, run := f.Spec(), script("echo x >> /tmp/runs; wc -l < /tmp/runs")
	for _, r := range []struct {
		id, subject string
		payload     protocol.Request
	}{
		{"r1", protocol.RequestSubject("default", protocol.VerbCreate, "s"),
			protocol.Request{Version: 1, Sandbox: &spec}},
		{"r2", protocol.RequestSubject("default", protocol.VerbExec, "s"),
			protocol.Request{Version: 1, ExecID: "x", Exec: &run}},
	} {
		var answer *nats.Msg
		f.Eventually(20*time.Second, "the server has forgotten "+r.id, func() (err error) {
			duplicate := false
			if answer, duplicate = ask(ctx, f, nc, js, &nats.Msg{Subject: r.subject, Data: protocol.Encode(&r.payload)},
				r.id); duplicate {
				err = fmt.Errorf("it dropped the repeat")
			}
			return err
		})
		reply := &protocol.Reply{}
		if err := protocol.Decode(answer.Data, reply); err != nil || reply.Error != nil || reply.Changed {
			t.Errorf("%s after the window: %v, %v, changed %v", r.id, err, reply.Error, reply.Changed)
		}
	}
	repeat("after the window")
	if got := mustExec(ctx, t, first, script("cat /tmp/runs")); got != "x\n" {
		t.Errorf("the exec ran %d times", strings.Count(got, "x"))
	}
	events := history(ctx, t, f.Client, "s")
	if count(events, protocol.SandboxAccepted) != 1 || count(events, protocol.SandboxReady) != 1 ||
		count(events, protocol.ExecAccepted) != 2 {
		t.Errorf("the history has %v", kinds(events))
	}
	_, err = other.Create(ctx, f.Spec(), sdk.WithID("s"), sdk.WithRequestID("r3"))
	wantError(t, "somebody else's request", err, protocol.AlreadyExists, "", "")
	f.Judge()
}
