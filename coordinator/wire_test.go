package coordinator

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// wire is a client that uses only NATS and docs/wire.md.
type wire struct {
	t  *testing.T
	nc *nats.Conn
	js natsjs.JetStream
}

func (d *deployment) wire() *wire {
	d.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(d.server))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	if err != nil {
		d.t.Fatal(err)
	}
	return &wire{d.t, nc, js}
}

// publish stores a request in JSON, and returns the subscription that gets its answers.
func (w *wire) publish(verb, sandbox, body string, headers ...string) (answers *nats.Subscription, duplicate bool) {
	w.t.Helper()
	inbox := w.nc.NewInbox()
	answers, err := w.nc.SubscribeSync(inbox)
	if err != nil {
		w.t.Fatal(err)
	}
	m := nats.NewMsg(protocol.RequestSubject("default", verb, sandbox))
	m.Header.Set(protocol.HeaderContentType, protocol.ContentJSON)
	m.Header.Set(protocol.HeaderReply, inbox)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	m.Data = []byte(body)
	ack, err := w.js.PublishMsg(w.t.Context(), m)
	if err != nil {
		w.t.Fatal(err)
	}
	return answers, ack.Duplicate
}

func (w *wire) next(answers *nats.Subscription) *protocol.Reply {
	w.t.Helper()
	m, err := answers.NextMsg(15 * time.Second)
	if err != nil {
		w.t.Fatal(err)
	}
	r := &protocol.Reply{}
	if err := json.Unmarshal(m.Data, r); err != nil {
		w.t.Fatalf("%s: %v", m.Data, err)
	}
	return r
}

// A repeat of a request is answered, no matter if the request was accepted or refused. If the request has a message id,
// the server drops repeats until it has forgotten that id, and says so in its acknowledgement.
func TestARepeatOverTheWireIsAnswered(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	w := d.wire()
	const create, exec = `{"v":1,"sandbox":{"image":"i"}}`, `{"v":1,"exec_id":"x","exec":{"command":["true"]}}`
	for _, header := range []string{protocol.HeaderRequest, nats.MsgIdHdr} {
		sandbox := fmt.Sprint("a", len(header))
		repeat := func(verb, body, id string) *protocol.Reply {
			t.Helper()
			var last *protocol.Reply
			for range 3 {
				d.eventually("the server stores the request", func() bool {
					answers, duplicate := w.publish(verb, sandbox, body, header, id)
					if !duplicate {
						last = w.next(answers)
					}
					return !duplicate
				})
			}
			return last
		}
		if r := repeat(protocol.VerbCreate, create, sandbox+"-create"); r.Error != nil || r.Sandbox == nil ||
			r.Changed {
			t.Errorf("with header %s, a repeated create is answered with %+v", header, r)
		}
		if r := repeat(protocol.VerbExec, exec, sandbox+"-exec"); r.Error == nil ||
			r.Error.Reason != protocol.ReasonSandboxNotReady {
			t.Errorf("with header %s, a repeated exec that was refused is answered with %+v", header, r)
		}
		if r := repeat(protocol.VerbStop, `{"v":1}`, sandbox+"-create"); !refused(r) ||
			r.Error.Reason != protocol.ReasonRequestUsed {
			t.Errorf("with header %s, a stop with the create's request id is answered with %+v", header, r)
		}
	}
}

// A client that gets no answer sends its request twice. Both copies get the same refusal. A copy that is sent after the
// refusal is decided again.
func TestARequestSentTwiceBeforeItsRefusalIsNotAccepted(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	const exec = `{"v":1,"exec_id":"x","exec":{"command":["true"]}}`
	stored, ready := make(chan struct{}), make(chan struct{})
	var asked atomic.Int64
	defer d.run(Config{Name: "c1", Probe: func(point string) {
		if point == "exec-before-append" {
			<-stored
			if asked.Add(1) == 2 {
				<-ready
			}
		}
	}})()
	d.create("a", protocol.SandboxSpec{Image: "i"})
	w := d.wire()
	one, _ := w.publish(protocol.VerbExec, "a", exec, protocol.HeaderRequest, "x")
	two, _ := w.publish(protocol.VerbExec, "a", exec, protocol.HeaderRequest, "x")
	close(stored)
	both := make(chan *protocol.Reply, 2)
	for _, answers := range []*nats.Subscription{one, two} {
		go func() { both <- w.next(answers) }()
	}
	wantRefusal := func(r *protocol.Reply) {
		t.Helper()
		if r.Error == nil || r.Error.Reason != protocol.ReasonSandboxNotReady {
			t.Errorf("a copy that was sent before the refusal is answered with %+v", r)
		}
	}
	wantRefusal(<-both)
	d.begin("a")
	close(ready)
	wantRefusal(<-both)
	later, _ := w.publish(protocol.VerbExec, "a", exec, protocol.HeaderRequest, "x")
	if r := w.next(later); r.Error != nil || !r.Changed {
		t.Errorf("a copy that was sent after the refusal is answered with %+v", r)
	}
}

// Answers in JSON include empty fields. Errors name fields as in the request.
func TestAnAnswerInJSONHasAllFields(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	w := d.wire()
	answer := func(verb, sandbox, body string, headers ...string) map[string]any {
		t.Helper()
		answers, _ := w.publish(verb, sandbox, body, headers...)
		m, err := answers.NextMsg(15 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var reply map[string]any
		if err := json.Unmarshal(m.Data, &reply); err != nil {
			t.Fatalf("%s: %v", m.Data, err)
		}
		return reply
	}
	const create = `{"v":1,"sandbox":{"image":"i"}}`
	for i, want := range []bool{true, false} {
		if r := answer("create", "a", create, protocol.HeaderRequest, "r1"); r["changed"] != want || r["error"] != nil {
			t.Errorf("create %d is answered with %v", i, r)
		}
	}
	for _, c := range []struct{ body, field string }{
		{`{"v":1,"sandbox":{"image":""}}`, "sandbox.image"},
		{`{"v":1,"sandbox":{"image":"i","grace":"soon"}}`, "sandbox.grace"},
		{`{"v":1,"sandbox":{"image":"i","required_services":{"db":{"image":"i","memory":"1"}}}}`,
			"sandbox.required_services.db.memory"},
		{`{"v":1,"sandbox":{"image":"i","mounts":[{"source":"/a","targets":"/b"}]}}`, "sandbox.mounts[0].targets"},
	} {
		r := answer("create", "b", c.body)
		if e, ok := r["error"].(map[string]any); !ok || e["field"] != c.field || r["changed"] != false {
			t.Errorf("%s should be refused for field %s, and is answered with %v", c.body, c.field, r)
		}
	}
	d.begin("a")
	noService := answer("exec", "a", `{"v":1,"exec_id":"x","exec":{"command":["ls"],"service":"web"}}`)
	if e := noService["error"].(map[string]any); e["field"] != "exec.service" {
		t.Errorf("an exec in a service that does not exist is answered with %v", e)
	}
	// The case of header names does not matter, and the content type may be missing.
	for i, headers := range [][]string{{"content-type", "application/json", "boxfleet-request", "low", "boxfleet-reply",
		""}, {}} {
		inbox := w.nc.NewInbox()
		answers, err := w.nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		m := nats.NewMsg(protocol.RequestSubject("default", protocol.VerbStop, "none"))
		m.Data = []byte(`{"v":1}`)
		for j := 0; j < len(headers); j += 2 {
			m.Header[headers[j]] = []string{headers[j+1]}
		}
		if i == 0 {
			m.Header["boxfleet-reply"] = []string{inbox}
		} else {
			m.Header.Set(protocol.HeaderReply, inbox)
		}
		if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if r := w.next(answers); r.Error == nil || r.Error.Code != protocol.NotFound {
			t.Errorf("a request with headers %v is answered with %+v", headers, r)
		}
	}
	for endpoint, list := range map[string]string{"list": "sandboxes", "hosts": "hosts"} {
		reply := w.read(endpoint, `{"v":1}`)
		if _, there := reply[list].([]any); !there {
			t.Errorf("the read %s has no list %s: %v", endpoint, list, reply)
		}
	}
	if rows, there := w.read("execs", `{"v":1,"sandbox":"a"}`)["execs"].([]any); !there || len(rows) != 0 {
		t.Errorf("the execs of a sandbox without execs are %v, want an empty list", rows)
	}
}

// A client gets a notice that its request waits only if the request says that the client understands such notices.
func TestAnOldClientGetsNoNoticeThatItsRequestWaits(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	w := d.wire()
	d.limitLog(1)
	const create = `{"v":1,"sandbox":{"image":"i"}}`
	older, _ := w.publish(protocol.VerbCreate, "a", create, protocol.HeaderRequest, "r1")
	newer, _ := w.publish(protocol.VerbCreate, "b", create, protocol.HeaderRequest, "r2", protocol.HeaderAccept,
		protocol.AcceptWaiting)
	if r := w.next(newer); r.Waiting == nil || r.Waiting.Reason != protocol.ReasonLogFull || r.Error != nil ||
		r.Sandbox != nil {
		t.Errorf("while its request waits, the newer client gets %+v", r)
	}
	d.limitLog(0)
	for name, answers := range map[string]*nats.Subscription{"older": older, "newer": newer} {
		if r := w.next(answers); r.Waiting != nil || r.Error != nil || r.Sandbox == nil {
			t.Errorf("after the wait, the %s client gets %+v", name, r)
		}
	}
}
