package auth_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// world is one server with a connection for each role that a field names. The server has the streams that the clients
// try to reach.
type world struct {
	coordinator, user, viewer, fleetViewer, worker *client
}

const coordinatorInbox = "_INBOX.@c1"

// worlds returns two worlds: the server of one is in operator mode, and the server of the other lists users in its
// configuration.
func worlds(t *testing.T) map[string]*world {
	t.Helper()
	ids := []rights.Identity{
		someone(rights.Coordinator, "c1", "", ""), someone(rights.User, "anna", "blue", ""),
		someone(rights.Viewer, "vera", "blue", ""), someone(rights.FleetViewer, "screen", "", ""),
		someone(rights.Worker, "w1", "", "HOSTA"),
	}
	a, s := newAuthority(t)
	var signed, static []*client
	var users []auth.StaticUser
	var keys []nkeys.KeyPair
	for _, id := range ids {
		signed = append(signed, dial(t, s, issue(t, a, id)))
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		if id.Key, err = pair.PublicKey(); err != nil {
			t.Fatal(err)
		}
		keys, users = append(keys, pair), append(users, auth.StaticUser{Identity: id})
	}
	part, err := auth.StaticConfig(users)
	if err != nil {
		t.Fatal(err)
	}
	s = startServer(t, part)
	for i, u := range users {
		c, err := connect(s, nats.Nkey(u.Key, keys[i].Sign))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		static = append(static, c)
	}
	all := map[string]*world{}
	for form, c := range map[string][]*client{"operator mode": signed, "static users": static} {
		w := &world{coordinator: c[0], user: c[1], viewer: c[2], fleetViewer: c[3], worker: c[4]}
		w.makeStream(t, "BOXFLEET_REQUESTS", `"subjects":["boxfleet.v1.request.*.*.*.*"]`)
		w.makeStream(t, "BOXFLEET_LOGS", `"subjects":["boxfleet.v1.out.*.*.*.*"]`)
		w.makeStream(t, "KV_boxfleet_locks", `"subjects":["$KV.boxfleet_locks.>"]`)
		w.makeStream(t, "BOXFLEET_EVENTS", `"subjects":["boxfleet.v1.append.*.*.*","boxfleet.v1.event.*.*"],
			"subject_transform":{"src":"`+protocol.AppendFilter+`","dest":"`+protocol.AppendTransform+`"},
			"republish":{"src":"boxfleet.v1.event.>","dest":"boxfleet.v1.live.>"}`)
		all[form] = w
	}
	return all
}

func (w *world) makeStream(t *testing.T, name, config string) {
	t.Helper()
	answer := ask(t, w.coordinator, coordinatorInbox+"."+name, "$JS.API.STREAM.CREATE."+name,
		fmt.Sprintf(`{"name":%q,%s,"num_replicas":1,"storage":"memory"}`, name, config))
	if !strings.Contains(answer, `"created"`) {
		t.Fatalf("%s was not made: %s", name, answer)
	}
}

// messages returns how many messages a stream has.
func (w *world) messages(t *testing.T, name string) int {
	t.Helper()
	answer := ask(t, w.coordinator, fmt.Sprintf("%s.%d", coordinatorInbox, time.Now().UnixNano()),
		"$JS.API.STREAM.INFO."+name, "")
	var info struct {
		State struct{ Messages int }
	}
	if err := json.Unmarshal([]byte(answer), &info); err != nil {
		t.Fatal(err)
	}
	return info.State.Messages
}

// TestNoAnswerIsStoredWhereTheAskerMayNotWrite sends messages whose reply subjects belong to streams. The server and
// the coordinator publish their answers to these subjects. No stream may store an answer.
func TestNoAnswerIsStoredWhereTheAskerMayNotWrite(t *testing.T) {
	t.Parallel()
	for form, w := range worlds(t) {
		t.Run(form, func(t *testing.T) {
			if _, err := w.coordinator.Subscribe("boxfleet.v1.api.*.*.*", func(m *nats.Msg) {
				_ = m.Respond([]byte(`{"v":1}`)) // if the server refuses this answer, a check below fails
			}); err != nil {
				t.Fatal(err)
			}
			w.coordinator.refusals(t)
			targets := []string{
				"$KV.boxfleet_locks.host.HOSTB", "boxfleet.v1.event.green.x", "boxfleet.v1.append.w2.green.x",
				"boxfleet.v1.request.green.otto.delete.x",
			}
			for i, target := range targets {
				for subject, c := range map[string]*client{
					fmt.Sprintf("boxfleet.v1.request.blue.anna.create.x%d", i): w.user,
					"boxfleet.v1.api.blue.anna.get":                            w.user,
					"boxfleet.v1.append.w1.blue.x":                             w.worker,
					"boxfleet.v1.api.default.@w1.awaited":                      w.worker,
					"$KV.boxfleet_locks.host.HOSTA":                            w.worker,
					"$JS.API.STREAM.INFO.BOXFLEET_EVENTS":                      w.worker,
					"$JS.API.STREAM.MSG.GET.BOXFLEET_EVENTS":                   w.worker,
					"$JS.API.DIRECT.GET.BOXFLEET_EVENTS":                       w.worker,
				} {
					if err := c.PublishRequest(subject, target, []byte(`{"last_by_subj":"boxfleet.v1.event.blue.x"}`)); err != nil {
						t.Fatal(err)
					}
				}
			}
			// Once these last questions are answered, all earlier questions have been answered, too.
			if got := ask(t, w.user, "_INBOX.blue.anna.last", "boxfleet.v1.api.blue.anna.get", ""); got != `{"v":1}` {
				t.Errorf("got %q", got)
			}
			ask(t, w.worker, "_INBOX.@w1.last", "boxfleet.v1.api.default.@w1.awaited", "")
			for stream, want := range map[string]int{
				"BOXFLEET_REQUESTS": len(targets), "KV_boxfleet_locks": len(targets), "BOXFLEET_EVENTS": len(targets),
			} {
				eventually.Holds(t, 10*time.Second, stream+" has what may be written", func() bool {
					return w.messages(t, stream) >= want
				})
				if got := w.messages(t, stream); got != want {
					t.Errorf("%s has %d messages, and %d were written by those who may", stream, got, want)
				}
			}
		})
	}
}

func TestClientsAreHeardAndHear(t *testing.T) {
	t.Parallel()
	for form, w := range worlds(t) {
		t.Run(form, func(t *testing.T) {
			ack := ask(t, w.user, "_INBOX.blue.anna.ack", "boxfleet.v1.request.blue.anna.create.x", "request")
			if !strings.Contains(ack, `"stream":"BOXFLEET_REQUESTS"`) {
				t.Errorf("a request was not acknowledged: %s", ack)
			}
			for subject, way := range map[string]struct {
				hears, says *client
				to          string // the subject to publish to; empty: the subscribed subject
			}{
				"boxfleet.v1.live.blue.x":   {w.user, w.worker, "boxfleet.v1.append.w1.blue.x"},
				"boxfleet.v1.live.green.x":  {w.fleetViewer, w.worker, "boxfleet.v1.append.w1.green.x"},
				"boxfleet.v1.status":        {w.viewer, w.coordinator, ""},
				"boxfleet.v1.heartbeat.w1":  {w.fleetViewer, w.worker, ""},
				"boxfleet.v1.heartbeat.*":   {w.coordinator, w.worker, "boxfleet.v1.heartbeat.w1"},
				"boxfleet.v1.out.*.blue.>":  {w.user, w.worker, "boxfleet.v1.out.HOSTA.blue.x.e"},
				"boxfleet.v1.work.w1.*.*":   {w.worker, w.coordinator, "boxfleet.v1.work.w1.blue.x"},
				"_INBOX.blue.anna.answer.1": {w.user, w.coordinator, ""},

				"boxfleet.v1.measure.w1.HOSTA":   {w.worker, w.coordinator, ""},
				"boxfleet.v1.measured.c1.w1.*.*": {w.coordinator, w.worker, "boxfleet.v1.measured.c1.w1.HOSTA.q"},
			} {
				sub, err := way.hears.SubscribeSync(subject)
				if err != nil {
					t.Fatal(err)
				}
				if refused := way.hears.refusals(t); len(refused) > 0 {
					t.Fatal(refused)
				}
				if err := way.says.Publish(cmp.Or(way.to, subject), []byte("news")); err != nil {
					t.Fatal(err)
				}
				if m, err := sub.NextMsg(10 * time.Second); err != nil || string(m.Data) != "news" {
					t.Errorf("%s: %v", subject, err)
				}
			}
		})
	}
}

// TestOutputIsHeardAndStoredOnce publishes output as a worker. A user of the tenant receives the output once, and the
// stream stores the output once and acknowledges it.
func TestOutputIsHeardAndStoredOnce(t *testing.T) {
	t.Parallel()
	for form, w := range worlds(t) {
		t.Run(form, func(t *testing.T) {
			sub, err := w.user.SubscribeSync("boxfleet.v1.out.*.blue.>")
			if err != nil {
				t.Fatal(err)
			}
			w.user.refusals(t)
			for _, text := range []string{"first", "second"} {
				ack := ask(t, w.worker, "_INBOX.@w1."+text, "boxfleet.v1.out.HOSTA.blue.x.e", text)
				if !strings.Contains(ack, `"stream":"BOXFLEET_LOGS"`) {
					t.Errorf("output was not acknowledged: %s", ack)
				}
				if m, err := sub.NextMsg(10 * time.Second); err != nil || string(m.Data) != text {
					t.Errorf("%s: the user hears %v, %v", text, m, err)
				}
			}
			if got := w.messages(t, "BOXFLEET_LOGS"); got != 2 {
				t.Errorf("%d messages are stored, and 2 were published", got)
			}
			if err := w.worker.Publish("boxfleet.v1.out.HOSTB.blue.x.e", []byte("forged")); err != nil {
				t.Fatal(err)
			}
			if refused := w.worker.refusals(t); len(refused) != 1 {
				t.Errorf("the server refuses %q, want output as from another host", refused)
			}
		})
	}
}

func TestAReadThatNobodyAnswersEndsAtOnce(t *testing.T) {
	t.Parallel()
	for form, w := range worlds(t) {
		t.Run(form, func(t *testing.T) {
			sub, err := w.viewer.SubscribeSync("_INBOX.blue.vera.x")
			if err != nil {
				t.Fatal(err)
			}
			if err := w.viewer.PublishRequest("boxfleet.v1.api.blue.vera.get", "_INBOX.blue.vera.x", nil); err != nil {
				t.Fatal(err)
			}
			if _, err := sub.NextMsg(10 * time.Second); !errors.Is(err, nats.ErrNoResponders) {
				t.Errorf("got %v", err)
			}
		})
	}
}
