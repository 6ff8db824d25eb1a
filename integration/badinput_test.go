package integration

import (
	"context"
	"encoding/json"
	"errors"
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

// request is a message from a client without the SDK.
type request struct {
	subject, contentType string
	data                 []byte
}

func asJSON(verb, sandbox, text string) request {
	return request{protocol.RequestSubject("default", verb, sandbox), protocol.ContentJSON, []byte(text)}
}

func asMsgpack(verb, sandbox string, v any) request {
	return request{protocol.RequestSubject("default", verb, sandbox), protocol.ContentMsgpack, protocol.Encode(v)}
}

// replyTo publishes a request and returns the answer. It checks that the answer has the same encoding as the request.
func replyTo(ctx context.Context, f *fleet.Fleet, nc *nats.Conn, js jetstream.JetStream, r request) *protocol.Reply {
	f.TB.Helper()
	m := &nats.Msg{Subject: r.subject, Data: r.data, Header: nats.Header{}}
	if r.contentType != "" {
		m.Header.Set(protocol.HeaderContentType, r.contentType)
	}
	answer, duplicate := ask(ctx, f, nc, js, m, "r-"+nats.NewInbox()[7:])
	if duplicate {
		f.TB.Fatal("the server dropped the first request with a new id as a duplicate")
	}
	reply := &protocol.Reply{}
	var err error
	if r.contentType == protocol.ContentJSON {
		err = json.Unmarshal(answer.Data, reply)
	} else {
		err = protocol.Decode(answer.Data, reply)
	}
	if err != nil {
		f.TB.Fatalf("cannot decode the answer to %s: %v: %q", r.subject, err, answer.Data)
	}
	if reply.Version != protocol.Version {
		f.TB.Errorf("the answer to %s has version %d", r.subject, reply.Version)
	}
	return reply
}

func TestBadRequestsAreAnsweredWithTheFieldNamed(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("good")
	nc, js := bus(f)
	good := f.Spec()
	run := script("true")
	bad := func(change func(*protocol.SandboxSpec)) protocol.Request {
		spec := good
		change(&spec)
		return protocol.Request{Version: 1, Sandbox: &spec}
	}
	badExec := func(change func(*protocol.ExecSpec)) protocol.Request {
		spec := run
		change(&spec)
		return protocol.Request{Version: 1, ExecID: "x", Exec: &spec}
	}
	type c struct {
		request
		code   protocol.Code
		reason string
		field  string
	}
	const invalid = protocol.InvalidArgument
	cases := map[string]c{
		"nothing": {asJSON("create", "b", ""), invalid, protocol.ReasonUndecodable, ""},
		"no JSON": {asJSON("create", "b", "{"), invalid, protocol.ReasonUndecodable, ""},
		"JSON and more": {asJSON("stop", "good", `{"v":1} {}`), invalid, protocol.ReasonUndecodable,
			""},
		"JSON of another type": {asJSON("create", "b", `{"v":1,"sandbox":{"image":7}}`), invalid,
			protocol.ReasonUndecodable, "sandbox.image"},
		"an unknown field": {asJSON("create", "b", `{"v":1,"sandbox":{"image":"a","privileged":true}}`),
			invalid, protocol.ReasonUnknownField, "sandbox.privileged"},
		"an unknown field in the frame": {asJSON("stop", "good", `{"v":1,"tenant":"other"}`), invalid,
			protocol.ReasonUnknownField, "tenant"},
		"no msgpack": {request{protocol.RequestSubject("default", "create", "b"), "",
			[]byte("\xc1\xff")}, invalid, protocol.ReasonUndecodable, ""},
		"msgpack cut off": {request{protocol.RequestSubject("default", "stop", "good"), "",
			protocol.Encode(&protocol.Request{Version: 1})[:2]}, invalid, protocol.ReasonUndecodable, ""},
		"a bomb": {request{protocol.RequestSubject("default", "create", "b"), "",
			[]byte(strings.Repeat("\xdd\xff\xff\xff\xff", 1000))}, invalid, protocol.ReasonUndecodable, ""},
		"an unknown field in msgpack": {asMsgpack("stop", "good", map[string]any{"v": 1, "force": true}), invalid,
			protocol.ReasonUnknownField, "force"},
		"another content type": {request{protocol.RequestSubject("default", "stop", "good"), "text/yaml",
			[]byte("v: 1")}, invalid, protocol.ReasonUndecodable, protocol.HeaderContentType},
		"no version": {asJSON("stop", "good", `{}`), protocol.FailedPrecondition,
			protocol.ReasonUnsupportedVersion, "v"},
		"a later version": {asJSON("stop", "good", `{"v":99}`), protocol.FailedPrecondition,
			protocol.ReasonUnsupportedVersion, "v"},
		"an unknown verb": {asJSON("explode", "good", `{"v":1}`), invalid, "", "verb"},
		"an invalid sandbox id": {request{protocol.RequestSubject("default", "stop", "a:b"),
			protocol.ContentJSON, []byte(`{"v":1}`)}, invalid, "", "sandbox"},
		"a sandbox id that is too long": {asJSON("stop", strings.Repeat("x", 65), `{"v":1}`), invalid, "", "sandbox"},
		"an invalid tenant": {request{protocol.RequestSubject("ä", "stop", "good"), protocol.ContentJSON,
			[]byte(`{"v":1}`)}, invalid, "", "tenant"},
		"no spec": {asJSON("create", "b", `{"v":1}`), invalid, "", "sandbox"},
		"an exec without an id": {asMsgpack("exec", "good", &protocol.Request{Version: 1, Exec: &run}), invalid,
			"", "exec_id"},
		"an invalid exec id": {asMsgpack("exec", "good",
			&protocol.Request{Version: 1, Exec: &run, ExecID: "a/b"}), invalid, "", "exec_id"},
		"a field of another verb": {asJSON("stop", "good", `{"v":1,"exec_id":"x"}`), invalid, "", "exec_id"},
		"no image": {asMsgpack("create", "b", bad(func(s *protocol.SandboxSpec) { s.Image = "" })),
			invalid, "", "sandbox.image"},
		"an invalid image": {asMsgpack("create", "b",
			bad(func(s *protocol.SandboxSpec) { s.Image = "--privileged" })), invalid, "", "sandbox.image"},
		"a bad variable": {asMsgpack("create", "b",
			bad(func(s *protocol.SandboxSpec) { s.Env = map[string]string{"1X": ""} })), invalid, "", "sandbox.env.1X"},
		"a bad label": {asMsgpack("create", "b",
			bad(func(s *protocol.SandboxSpec) { s.Labels = map[string]string{"-x": ""} })), invalid, "", "sandbox.labels.-x"},
		"too little memory": {asMsgpack("create", "b", bad(func(s *protocol.SandboxSpec) { s.Memory = 1 })),
			invalid, "", "sandbox.memory"},
		"an excessive grace": {asMsgpack("create", "b",
			bad(func(s *protocol.SandboxSpec) { s.Grace = 1 << 60 })), invalid, "", "sandbox.grace"},
		"an invalid user": {asMsgpack("create", "b",
			bad(func(s *protocol.SandboxSpec) { s.User = "a b" })), invalid, "", "sandbox.user"},
		"two things at one target": {asMsgpack("create", "b", bad(func(s *protocol.SandboxSpec) {
			s.Mounts = []protocol.Mount{{Source: "/a", Target: "/m"}, {Source: "/b", Target: "/m/"}}
		})), invalid, "", "sandbox.mounts[1].target"},
		"a mount over the supervisor": {asMsgpack("create", "b", bad(func(s *protocol.SandboxSpec) {
			s.Mounts = []protocol.Mount{{Source: "/a", Target: "/x/../.boxfleet/supervisor"}}
		})), invalid, "", "sandbox.mounts[0].target"},
		"an invalid digest": {asMsgpack("create", "b",
			bad(func(s *protocol.SandboxSpec) {
				s.Copies = []protocol.Copy{{Digest: "../x",
					Target: "/x"}}
			})), invalid, "", "sandbox.copies[0].digest"},
		"an oversized spec": {asMsgpack("create", "b",
			bad(func(s *protocol.SandboxSpec) {
				s.Cwd = "/" + strings.Repeat("x",
					protocol.MaxSpecBytes)
			})), invalid, protocol.ReasonTooLarge, "payload"},
		"too many variables": {asMsgpack("exec", "good",
			badExec(func(s *protocol.ExecSpec) {
				s.Env = map[string]string{"A": strings.Repeat("x",
					protocol.MaxEnvBytes)}
			})), invalid, "", "exec.env"},
		"no command": {asMsgpack("exec", "good", badExec(func(s *protocol.ExecSpec) { s.Command = nil })),
			invalid, "", "exec.command"},
		"a relative directory": {asMsgpack("exec", "good", badExec(func(s *protocol.ExecSpec) { s.Cwd = "tmp" })),
			invalid, "", "exec.cwd"},
		"a negative timeout": {asMsgpack("exec", "good", badExec(func(s *protocol.ExecSpec) { s.Timeout = -1 })),
			invalid, "", "exec.timeout"},
		"an exec in an unknown sandbox": {asMsgpack("exec", "b", &protocol.Request{Version: 1, ExecID: "x", Exec: &run}),
			protocol.NotFound, "", ""},
		"a stop of an unknown sandbox": {asJSON("stop", "b", `{"v":1}`), protocol.NotFound, "", ""},
		"a cancel of an unknown exec": {asJSON("cancel", "good", `{"v":1,"exec_id":"never-was"}`), protocol.NotFound, "",
			""},
		"an invalid duration": {asJSON("create", "b", `{"v":1,"sandbox":{"image":"a","grace":"soon"}}`), invalid,
			protocol.ReasonUndecodable, "sandbox.grace"},
	}
	for what, c := range cases {
		reply := replyTo(ctx, f, nc, js, c.request)
		if reply.Error == nil {
			t.Errorf("%s: accepted", what)
			continue
		}
		wantError(t, what, reply.Error, c.code, c.reason, c.field)
	}
	// Requests that cannot be decoded are stored as dead letters, with the reason.
	if dead := messagesOf(f, protocol.StreamDead); dead < 8 {
		t.Errorf("%d requests are dead letters", dead)
	}
	mustExec(ctx, t, s, run)
	if _, err := f.Client.Create(ctx, good, sdk.WithID("b")); err != nil {
		t.Errorf("create with the id of the refused creates: %v", err)
	}
	f.Judge()
}

func TestAPlainClientDrivesASandboxInJSON(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	nc, js := bus(f)
	reply := replyTo(ctx, f, nc, js, asJSON("create", "plain",
		`{"v":1,"sandbox":{"image":"`+fleet.Image+`","memory":"64m","grace":"1s"}}`))
	if reply.Error != nil || reply.Sandbox == nil || reply.Sandbox.Spec.Memory != 64<<20 || !reply.Changed {
		t.Fatalf("create: %v, %+v", reply.Error, reply.Sandbox)
	}
	if err := f.Client.Sandbox("plain").WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	reply = replyTo(ctx, f, nc, js, asJSON("exec", "plain",
		`{"v":1,"exec_id":"x","exec":{"command":["echo","it works"]}}`))
	if reply.Error != nil || reply.Exec == nil || reply.Exec.ID != "x" {
		t.Fatalf("exec: %v", reply.Error)
	}
	x, err := f.Client.Sandbox("plain").GetExec(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := x.Wait(ctx); err != nil || string(r.Stdout) != "it works\n" {
		t.Errorf("exec: %v, %q", err, r.Stdout)
	}
	read := &nats.Msg{Subject: protocol.APISubject("default", protocol.EndpointExec), Header: nats.Header{},
		Data: []byte(`{"v":1,"sandbox":"plain","exec":"x"}`)}
	read.Header.Set(protocol.HeaderContentType, protocol.ContentJSON)
	answer, err := nc.RequestMsgWithContext(ctx, read)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Exec struct {
			State    string `json:"state"`
			ExitCode *int   `json:"exit_code"`
		} `json:"exec"`
	}
	if err := json.Unmarshal(answer.Data, &got); err != nil || got.Exec.State != "finished" ||
		got.Exec.ExitCode == nil || *got.Exec.ExitCode != 0 {
		t.Errorf("read: %v, %s", err, answer.Data)
	}
}

func TestAnImageThatIsNotThereFailsTheSandboxQuickly(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Image = "boxfleet/there-is-no-such-image:x"
	begin := time.Now()
	s, err := f.Client.Create(ctx, spec, sdk.WithID("noimage"))
	wantNoImage(t, err)
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("the create took %s to fail", took)
	}
	if s == nil || s.Info().State != protocol.StateFailed || s.Info().Error == nil {
		t.Fatalf("the sandbox is %+v", s)
	}
	becomesEmpty(f, w)
	if _, err := s.Exec(ctx, script("true")); !errors.Is(err, protocol.ErrFailedPrecondition) {
		t.Errorf("an exec in a failed sandbox returned %v", err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Errorf("delete a failed sandbox: %v", err)
	}
	mustExec(ctx, t, f.Create("next"), script("true"))
	f.Judge()
}

func TestARequestThatAlwaysFailsIsAnsweredAndFiledAsDead(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Coordinators: -1, Duplicates: time.Second})
	c := f.Coordinator("c1", fleet.Role{PanicAt: "exec-before-append"}) // every attempt panics
	f.Connect()
	f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	s := f.Create("poison")
	_, js := bus(f)
	_, err := s.Exec(ctx, script("echo x >> /tmp/runs"), sdk.WithID("x"), sdk.WithRequestID("r-dead"))
	wantError(t, "a request that always fails", err, protocol.Internal, protocol.ReasonDeadLettered, "")
	stream, err := js.Stream(ctx, protocol.StreamDead)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := stream.GetLastMsgForSubject(ctx, protocol.DeadSubject("default", protocol.VerbExec, "poison"))
	if err != nil {
		t.Fatal(err)
	}
	if dead.Header.Get(protocol.HeaderReason) == "" || dead.Header.Get(protocol.HeaderRequest) != "r-dead" {
		t.Errorf("the dead letter lacks its reason or its id: %v", dead.Header)
	}
	f.Eventually(10*time.Second, "the request leaves the queue", func() error {
		if n := messagesOf(f, protocol.StreamRequests); n > 0 {
			return fmt.Errorf("%d messages are in the queue", n)
		}
		return nil
	})

	// When coordinators no longer panic, the dead letter can be sent again.
	c.Stop()
	c.Restart()
	again := &protocol.Request{}
	if err := protocol.Decode(dead.Data, again); err != nil {
		t.Fatal(err)
	}
	reply, err := f.Client.Raw().Submit(ctx,
		sdk.Request{Verb: protocol.VerbExec, Sandbox: "poison", ID: "r-dead", Payload: *again})
	if err != nil || reply.Exec == nil {
		t.Fatalf("sent again: %v", err)
	}
	x, err := s.GetExec(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /tmp/runs")); got != "x\n" {
		t.Errorf("the exec ran %q", got)
	}
	f.Judge()
}
