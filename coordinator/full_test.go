package coordinator

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// raw calls f with a plain connection to NATS, for operations that Boxfleet never does.
func (d *deployment) raw(f func(js natsjs.JetStream) error) {
	d.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(d.server))
	if err != nil {
		d.t.Fatal(err)
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err == nil {
		err = f(js)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// stream returns the state and the configuration of a stream.
func (d *deployment) stream(name string) (info *natsjs.StreamInfo) {
	d.t.Helper()
	d.raw(func(js natsjs.JetStream) error {
		s, err := js.Stream(d.t.Context(), name)
		if err == nil {
			info = s.CachedInfo()
		}
		return err
	})
	return info
}

// limitLog lets the event log grow by the given number of bytes. 0 removes the log's limit.
func (d *deployment) limitLog(more int64) {
	d.t.Helper()
	info := d.stream(protocol.StreamEvents)
	info.Config.Discard, info.Config.MaxBytes = natsjs.DiscardNew, -1
	if more != 0 {
		info.Config.MaxBytes = int64(info.State.Bytes) + more
	}
	d.raw(func(js natsjs.JetStream) error {
		_, err := js.UpdateStream(d.t.Context(), info.Config)
		return err
	})
}

// ready creates a sandbox that is ready to accept execs.
func (d *deployment) ready(id string) {
	d.t.Helper()
	d.create(id, protocol.SandboxSpec{Image: "i"})
	d.begin(id)
}

// begin appends the events that make a created sandbox ready.
func (d *deployment) begin(id string) {
	d.t.Helper()
	d.work(id, func(s *protocol.State) []protocol.Event {
		return []protocol.Event{
			{Kind: protocol.SandboxAssigned,
				Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}},
			{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}},
		}
	})
}

// submitted is a request that the server has acknowledged, and its answers.
type submitted struct {
	verb, sandbox, ID string
	answer            <-chan *protocol.Reply
}

// ask submits a request, and waits only for the server's acknowledgement.
func (d *deployment) ask(answers *jetstream.Answers, verb, sandbox, id string, r protocol.Request) submitted {
	d.t.Helper()
	inbox, answer, stop := answers.Expect(id)
	d.t.Cleanup(stop)
	r.Version = protocol.Version
	if err := d.conn.Submit(d.t.Context(), "default", verb, sandbox, id, inbox, protocol.Encode(&r)); err != nil {
		d.t.Fatal(err)
	}
	return submitted{verb, sandbox, id, answer}
}

// hears waits for the next answer to a request.
func (a submitted) hears(t *testing.T) *protocol.Reply {
	t.Helper()
	select {
	case r := <-a.answer:
		return r
	case <-time.After(30 * time.Second):
		t.Fatalf("%s request %s gets no answer", a.verb, a.ID)
		return nil
	}
}

func (d *deployment) messages(stream string) uint64 { d.t.Helper(); return d.stream(stream).State.Msgs }

// waitReason follows the announcements of coordinators. The returned function returns the last announced reason why
// requests wait, or "".
func (d *deployment) waitReason() func() string {
	d.t.Helper()
	var last atomic.Pointer[protocol.Status]
	stop, err := d.conn.FollowStatus(func(s *protocol.Status) { last.Store(s) })
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(stop)
	return func() string {
		if s := last.Load(); s != nil && s.Waiting != nil {
			return s.Waiting.Reason
		}
		return ""
	}
}

// An acknowledged request waits while the log is full, and is decided exactly once when there is room.
func TestP1_AFullLogKeepsAcknowledgedRequests(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	c, stop := d.inMemory(Config{Name: "c1", Timing: Timing{Abandon: time.Second}})
	defer stop()
	d.ready("a")
	d.limitLog(1)
	answers, err := d.conn.Answers()
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	waitReason := d.waitReason()
	const each = 100
	var all []submitted
	for i := range each {
		x := fmt.Sprint("x", i)
		all = append(all, d.ask(answers, protocol.VerbExec, "a", x,
			protocol.Request{ExecID: x, Exec: &protocol.ExecSpec{Command: []string{"true"}}}))
		s := fmt.Sprint("s", i)
		all = append(all, d.ask(answers, protocol.VerbCreate, s, "r-"+s,
			protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i"}}))
	}
	for _, a := range all {
		if r := a.hears(t); r.Waiting == nil || r.Waiting.Code != protocol.ResourceExhausted ||
			r.Waiting.Reason != protocol.ReasonLogFull || r.Error != nil || r.Exec != nil || r.Sandbox != nil {
			t.Fatalf("%s request %s should be answered that it waits, got %+v", a.verb, a.ID, r)
		}
	}
	d.eventually("a full log is announced", func() bool { return waitReason() == protocol.ReasonLogFull })
	d.reservationsChecked(c) // the ids of waiting creates must not be ended
	d.limitLog(0)
	for _, a := range all {
		r := a.hears(t)
		for r.Waiting != nil {
			r = a.hears(t)
		}
		if r.Error != nil || !r.Changed {
			t.Fatalf("%s request %s is answered with %+v", a.verb, a.ID, r)
		}
	}
	if n := d.messages(protocol.StreamDead); n != 0 {
		t.Errorf("%d requests became dead letters", n)
	}
	if pending := d.list("pending"); len(pending) != each {
		t.Errorf("%d of %d sandboxes were created", len(pending), each)
	}
	reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointGet, &protocol.Query{Sandbox: "a"})
	if err != nil || reply.Sandbox.TotalExecs != each {
		t.Errorf("a read of sandbox a returns %+v, %v", reply, err)
	}
	d.eventually("it is announced that requests no longer wait", func() bool { return waitReason() == "" })
}

// When only the log's reserve is left, requests for new work wait. Requests that end something pass, even if more
// requests wait before them in the queue than all coordinators can hold back.
func TestP1_RequestsThatEndSomethingPassWithinTheReserve(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	d.ready("a")
	d.ready("b")
	d.limitLog(0)
	if r := d.request(protocol.VerbExec, "a", "x0",
		protocol.Request{ExecID: "x0", Exec: &protocol.ExecSpec{Command: []string{"true"}}}); r.Error != nil {
		t.Fatal(r.Error)
	}
	const reserved = 1 << 16
	waitReason := d.waitReason()
	d.limitLog(reserved)
	d.fill("b", reserved/16)
	d.eventually("a full log is announced", func() bool { return waitReason() == protocol.ReasonLogFull })
	answers, err := d.conn.Answers()
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	first := d.ask(answers, protocol.VerbCreate, "s", "r-s",
		protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i"}})
	if r := first.hears(t); r.Waiting == nil || r.Waiting.Reason != protocol.ReasonLogFull {
		t.Fatalf("a create is answered with %+v although only the reserve is left", r)
	}
	const waiting = 1500
	for i := range waiting {
		id := fmt.Sprint("w", i)
		d.ask(answers, protocol.VerbExec, "a", id,
			protocol.Request{ExecID: id, Exec: &protocol.ExecSpec{Command: []string{"true"}}})
	}
	for _, a := range []submitted{
		d.ask(answers, protocol.VerbCancel, "a", "cancel", protocol.Request{ExecID: "x0"}),
		d.ask(answers, protocol.VerbStop, "b", "stop", protocol.Request{}),
		d.ask(answers, protocol.VerbDelete, "a", "delete", protocol.Request{}),
	} {
		if r := a.hears(t); r.Waiting != nil || r.Error != nil || !r.Changed {
			t.Errorf("with only the reserve left, a %s is answered with %+v", a.verb, r)
		}
	}
	d.limitLog(0)
	if r := first.hears(t); r.Error != nil || !r.Changed {
		t.Errorf("once the log has room, the create is answered with %+v", r)
	}
	d.eventually("the queue is empty", func() bool { return d.messages(protocol.StreamRequests) == 0 })
	reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointGet, &protocol.Query{Sandbox: "a"})
	if err != nil || reply.Sandbox.Desired != protocol.StateDeleted || reply.Sandbox.TotalExecs != 1 {
		t.Errorf("a read of sandbox a returns %+v, %v", reply, err)
	}
	if n := d.messages(protocol.StreamDead); n != 0 {
		t.Errorf("%d requests became dead letters", n)
	}
}

// fill appends to a sandbox's history until only the log's reserve is left.
func (d *deployment) fill(sandbox string, each int) {
	d.t.Helper()
	for {
		d.work(sandbox, func(*protocol.State) []protocol.Event {
			return []protocol.Event{{Kind: protocol.SandboxWaiting,
				Error: protocol.Errorf(protocol.Unavailable, "", "%s", make([]byte, each))}}
		})
		info := d.stream(protocol.StreamEvents)
		if used, limit := int64(info.State.Bytes), info.Config.MaxBytes; used > limit-limit/8 {
			return
		}
	}
}

// On a full disk, appends fail in other ways than in a full log. The server may answer with an error of its store.
// After such an error, the server may not answer at all until it is restarted.
func TestP1_AFullDiskKeepsAcknowledgedRequests(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	server, err := embedded.Start(embedded.Config{Dir: filepath.Join(dir, "nats")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	connect := func(name string) *jetstream.Conn {
		conn, err := jetstream.Connect(t.Context(), jetstream.Config{URL: server.ClientURL(), Name: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	d := &deployment{t: t, server: server, conn: connect("test")}
	full := make(chan struct{})
	atAppend := sync.OnceFunc(func() { <-full })
	defer d.run(Config{Name: "c1", Conn: connect("c1"), Probe: func(point string) {
		if point == "exec-before-append" {
			atAppend()
		}
	}})()
	d.ready("a")
	answers, err := d.conn.Answers()
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	const execs = 100
	var all []submitted
	for i := range execs {
		x := fmt.Sprint("x", i)
		all = append(all, d.ask(answers, protocol.VerbExec, "a", x,
			protocol.Request{ExecID: x, Exec: &protocol.ExecSpec{Command: []string{"true"}}}))
	}
	ballast := filepath.Join(dir, "ballast")
	if err := fillDisk(ballast); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	close(full)
	first, waiting := make([]*protocol.Reply, execs), 0
	for i, a := range all { // the first execs may be accepted, since the log has a little room left
		if first[i] = a.hears(t); first[i].Waiting != nil {
			waiting++
		}
	}
	if waiting == 0 {
		t.Fatal("no request waits although the disk is full")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	if server, err = server.Restart(); err != nil {
		t.Fatal(err)
	}
	d.server = server
	for i, a := range all {
		r := first[i]
		for r.Waiting != nil {
			r = a.hears(t)
		}
		if r.Error != nil || r.Exec == nil {
			t.Fatalf("%s request %s is answered with %+v", a.verb, a.ID, r)
		}
	}
	if n := d.messages(protocol.StreamDead); n != 0 {
		t.Errorf("%d requests became dead letters", n)
	}
	reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointGet, &protocol.Query{Sandbox: "a"})
	if err != nil || reply.Sandbox.TotalExecs != execs {
		t.Errorf("a read of sandbox a returns %+v, %v", reply, err)
	}
}

// A server whose disk is full may disable its JetStream. Only a restart enables it again. A client without the right to
// ask JetStream learns from the coordinators what has happened.
func TestClientsLearnThatJetStreamIsDisabled(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	var log eventually.Buffer
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{URL: d.server.ClientURL(), Name: "c1",
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	stop := d.run(Config{Name: "c1", Conn: conn})
	defer func() { stop() }()
	user := d.connectAs(jetstream.Config{URL: d.server.ClientURL(), Name: "user", WithoutStreams: true})
	var waiting atomic.Pointer[protocol.Error]
	unfollow, err := user.FollowStatus(func(s *protocol.Status) { waiting.Store(s.Waiting) })
	if err != nil {
		t.Fatal(err)
	}
	defer unfollow()
	if err := d.server.ShutdownJetStream(); err != nil {
		t.Fatal(err)
	}
	explains := func(text string) bool {
		return strings.Contains(text, "JetStream is disabled") && strings.Contains(text, "restart the server")
	}
	eventually.Holds(t, 20*time.Second, "a client hears why nothing is decided", func() bool {
		why := waiting.Load()
		return why != nil && explains(why.Message)
	})
	reply, err := user.Query(t.Context(), "default", protocol.EndpointPing, &protocol.Query{})
	if err != nil || len(reply.Ping.Storage.Problems) == 0 || !explains(reply.Ping.Storage.Problems[0]) {
		t.Errorf("a ping is answered with %+v, %v", reply, err)
	}
	if !explains(log.String()) {
		t.Errorf("the coordinator's log does not say what to do:\n%s", log.String())
	}
	stop()
	stop = func() {}
	late := d.connectAs(jetstream.Config{URL: d.server.ClientURL(), Name: "late", WithoutStreams: true})
	_, err = late.Query(t.Context(), "default", protocol.EndpointPing, &protocol.Query{})
	if err == nil || !strings.Contains(err.Error(), "no coordinator answers") ||
		!strings.Contains(err.Error(), "JetStream is disabled") {
		t.Errorf("without a coordinator, the ping is answered with %v", err)
	}
}

// fillDisk writes to a file until the disk is full.
func fillDisk(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
}
