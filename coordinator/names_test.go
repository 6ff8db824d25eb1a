package coordinator

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// named creates a sandbox with a name.
func (d *deployment) named(name, id string) *protocol.Reply {
	d.t.Helper()
	return d.request(protocol.VerbCreate, id, "create-"+id,
		protocol.Request{Name: name, Sandbox: &protocol.SandboxSpec{Image: "i"}})
}

func (d *deployment) mustName(name, id string) {
	d.t.Helper()
	if r := d.named(name, id); r.Error != nil || r.Sandbox == nil || r.Sandbox.Name != name || r.Sandbox.ID != id {
		d.t.Fatalf("the create of %s with the name %s is answered with %+v, %v, waiting: %v", id, name, r.Sandbox, r.Error,
			r.Waiting)
	}
}

// resolves reads a sandbox by an id, a name or a prefix, and returns the id in the answer.
func (d *deployment) resolves(endpoint, ref string) (string, *protocol.Error) {
	d.t.Helper()
	reply, err := d.conn.Query(d.t.Context(), "default", endpoint, &protocol.Query{Sandbox: ref})
	if err != nil {
		return "", protocol.AsError(err)
	}
	return reply.Sandbox.ID, nil
}

func (d *deployment) isFree(id string) {
	d.t.Helper()
	if _, err := d.conn.SandboxReservation(d.t.Context(), "default", id); protocol.CodeOf(err) != protocol.NotFound {
		d.t.Errorf("a refused create reserved the id %s: %v", id, err)
	}
}

func takenName(r *protocol.Reply) bool {
	return r.Error != nil && r.Error.Code == protocol.AlreadyExists && r.Error.Reason == protocol.ReasonNameTaken &&
		r.Error.Field == "name"
}

func TestANameBelongsToOneLivingSandbox(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.coordinator("c1", Timing{})
	d.mustName("web", "s1")
	if r := d.named("web", "s2"); !takenName(r) || !strings.Contains(r.Error.Message, "s1") {
		t.Errorf("a second create with the name is answered with %v", r.Error)
	}
	d.isFree("s2")
	if id, err := d.resolves(protocol.EndpointGet, "web"); id != "s1" {
		t.Errorf("the name web means sandbox %s, %v", id, err)
	}
	if r := d.request(protocol.VerbExtend, "web", "r1",
		protocol.Request{TTL: protocol.Duration(time.Hour)}); r.Error != nil || r.Sandbox.ID != "s1" ||
		r.Sandbox.ExpiresAt.IsZero() {
		t.Errorf("a request by name is answered with %+v, %v", r.Sandbox, r.Error)
	}
	stop()
	defer d.coordinator("c2", Timing{})() // c2 reads the name from the log
	if r := d.request(protocol.VerbDelete, "web", "r2", protocol.Request{}); r.Error != nil || r.Sandbox.ID != "s1" {
		t.Fatalf("a delete by name is answered with %+v, %v", r.Sandbox, r.Error)
	}
	if id, err := d.resolves(protocol.EndpointGet, "web"); id != "s1" { // the name is s1's until another sandbox takes it
		t.Errorf("the name web means sandbox %s, %v", id, err)
	}
	d.mustName("web", "s2")
	if id, err := d.resolves(protocol.EndpointGet, "web"); id != "s2" {
		t.Errorf("the name web means sandbox %s, %v", id, err)
	}
	// A failed sandbox is not living, so its name is free.
	d.work("s2", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.SandboxFailed,
			Error: &protocol.Error{Code: protocol.NotFound, Reason: protocol.ReasonImageNotFound, Message: "m"}}}
	})
	d.mustName("web", "s3")
	// A repeated create is answered with the sandbox that it created, even if another sandbox has the name now.
	if r := d.named("web", "s1"); r.Error != nil || r.Sandbox.State != protocol.StateDeleted || r.Changed {
		t.Errorf("a repeated create is answered with %+v, %v", r.Sandbox, r.Error)
	}
	if r := d.request(protocol.VerbCreate, "s3", "create-s3",
		protocol.Request{Name: "other", Sandbox: &protocol.SandboxSpec{Image: "i"}}); !refused(r) || takenName(r) {
		t.Errorf("the same request with another name is answered with %+v, %v", r.Sandbox, r.Error)
	}
	reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointList,
		&protocol.Query{Name: "web", States: []string{"pending", "failed", "deleted"}})
	if err != nil || len(reply.Sandboxes) != 3 {
		t.Errorf("a list by name is answered with %+v, %v", reply, err)
	}
	d.mustName("other", "s4")
	reply, err = d.conn.Query(t.Context(), "default", protocol.EndpointList, &protocol.Query{Name: "web"})
	if err != nil || len(reply.Sandboxes) != 2 || reply.Sandboxes[0].Name != "web" {
		t.Errorf("a list by name is answered with %+v, %v", reply, err)
	}
}

func TestOneOfManyCreatesAtOnceGetsTheName(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	for _, name := range []string{"c1", "c2"} {
		defer d.coordinator(name, Timing{})()
	}
	for round := range 5 {
		const n = 8
		replies := make([]*protocol.Reply, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { replies[i] = d.named("web", fmt.Sprintf("s%d-%d", round, i)) })
		}
		all.Wait()
		winner := ""
		for i, r := range replies {
			switch {
			case r.Error == nil && winner == "":
				winner = r.Sandbox.ID
			case r.Error == nil:
				t.Fatalf("sandboxes %s and %s have the same name", winner, r.Sandbox.ID)
			case !takenName(r):
				t.Fatal(r.Error)
			default:
				d.isFree(fmt.Sprintf("s%d-%d", round, i))
			}
		}
		if winner == "" {
			t.Fatal("no create got the name")
		}
		if r := d.request(protocol.VerbDelete, "web", fmt.Sprint("delete", round),
			protocol.Request{}); r.Error != nil || r.Sandbox.ID != winner {
			t.Fatalf("the name web means sandbox %+v, want %s: %v", r.Sandbox, winner, r.Error)
		}
	}
}

// A create takes a name, but its coordinator hangs before the first event, and the queue loses the request. The next
// create gets the name. When the coordinator continues, the first create gets nothing.
func TestANameThatWasTakenButNotUsedBecomesFree(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"create-before-reserve", "create-before-append"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			arrived, goOn := make(chan struct{}), make(chan struct{})
			var came atomic.Bool
			defer d.run(Config{Name: "c1", Probe: func(p string) {
				if p == point && came.CompareAndSwap(false, true) {
					close(arrived)
					<-goOn
				}
			}})()
			release := sync.OnceFunc(func() { close(goOn) })
			defer release()
			slow := make(chan *protocol.Reply, 1)
			go func() {
				answers, err := d.conn.Answers()
				if err != nil {
					t.Error(err)
					return
				}
				defer answers.Close()
				inbox, answer, stop := answers.Expect("create-s1")
				defer stop()
				r := protocol.Request{Version: protocol.Version, Name: "web",
					Sandbox: &protocol.SandboxSpec{Image: "i"}}
				if err := d.conn.Submit(t.Context(), "default", protocol.VerbCreate, "s1", "create-s1", inbox,
					protocol.Encode(&r)); err != nil {
					t.Error(err)
				}
				slow <- <-answer
			}()
			<-arrived
			if r := d.named("web", "s2"); !takenName(r) {
				t.Errorf("while the first create is being decided, a second one is answered with %v", r.Error)
			}
			d.raw(func(js natsjs.JetStream) error {
				stream, err := js.Stream(t.Context(), protocol.StreamRequests)
				if err == nil {
					err = stream.Purge(t.Context())
				}
				return err
			})
			d.mustName("web", "s3")
			release()
			if r := <-slow; r.Error == nil && r.Sandbox.State != protocol.StateFailed {
				t.Errorf("the slow create is answered with %+v", r.Sandbox)
			}
			if id, err := d.resolves(protocol.EndpointGet, "web"); id != "s3" {
				t.Errorf("the name web means sandbox %s, %v", id, err)
			}
			if b := d.list()["s1"]; b == nil || b.State != protocol.StateFailed ||
				b.Error.Reason != protocol.ReasonAbandoned {
				t.Errorf("the sandbox of the slow create is %+v", b)
			}
		})
	}
}

// A request by name that was stored before another sandbox took the name means the previous holder. The server may
// deliver such a request again after it was decided.
func TestALateRequestByNameMeansTheSandboxThatHadTheNameThen(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	c, stop := d.inMemory(Config{Name: "c1"})
	defer stop()
	d.mustName("web", "s1")
	first, _, err := d.conn.SandboxName(t.Context(), "default", "web")
	if err != nil {
		t.Fatal(err)
	}
	d.remove("s1")
	d.mustName("web", "s2")
	last, err := d.conn.LastRequest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		sequence uint64
		want     string
	}{{first.Stored + 1, "s1"}, {last + 1, "s2"}} {
		k, err := (&nameRegistry{c}).meant(t.Context(),
			&jetstream.Delivery{Tenant: "default", Verb: protocol.VerbDelete, Sandbox: "web", Sequence: x.sequence})
		if err != nil || k.ID != x.want {
			t.Errorf("request %d means sandbox %s, %v; want %s", x.sequence, k.ID, err, x.want)
		}
	}
	// After two other sandboxes have taken the name, a request for the first holder does not mean the second holder.
	d.remove("s2")
	d.mustName("web", "s4")
	if k, err := (&nameRegistry{c}).meant(t.Context(),
		&jetstream.Delivery{Tenant: "default", Verb: protocol.VerbDelete, Sandbox: "web",
			Sequence: first.Stored + 1}); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("a request for the first of three holders means sandbox %s, %v", k.ID, err)
	}
	d.mustName("once", "s3")
	if _, err := (&nameRegistry{c}).meant(t.Context(),
		&jetstream.Delivery{Tenant: "default", Sandbox: "once",
			Sequence: 1}); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("a request from before the name was first taken returns %v", err)
	}
}

func TestIDsAndNamesNeverCollide(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	d.create("web", protocol.SandboxSpec{Image: "i"})
	if r := d.named("web", "s1"); !refused(r) || r.Error.Reason != protocol.ReasonNameIsID || r.Error.Field != "name" {
		t.Errorf("a create whose name is an id is answered with %v", r.Error)
	}
	d.isFree("s1")
	d.mustName("db", "s2")
	spec := &protocol.SandboxSpec{Image: "i"}
	if r := d.request(protocol.VerbCreate, "db", "r1", protocol.Request{Sandbox: spec}); !takenName(r) {
		t.Errorf("a create whose id is a name is answered with %v", r.Error)
	}
	d.isFree("db")
	generated := "01" + strings.Repeat("0", 24)
	for _, bad := range []string{generated, "a.b", strings.Repeat("x", 65)} {
		if r := d.named(bad, "s3"); r.Error == nil || r.Error.Code != protocol.InvalidArgument ||
			r.Error.Field != "name" {
			t.Errorf("a create with the name %s is answered with %v", bad, r.Error)
		}
	}
	if r := d.request(protocol.VerbStop, "s2", "r2", protocol.Request{Name: "x"}); r.Error == nil ||
		r.Error.Field != "name" {
		t.Errorf("a stop that sets a name is answered with %v", r.Error)
	}
	d.isFree("s3")
}

func TestARefusedCreateTakesNothing(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	h := host("w1", 0)
	h.Memory = 8 << 30
	d.register(h)
	d.eventually("the host is known", func() bool { return d.host("w1") != nil })
	service := func(image string) protocol.SandboxSpec {
		return protocol.SandboxSpec{Image: "i", RequiredServices: protocol.Services{"db": {Image: image}}}
	}
	for field, s := range map[string]protocol.SandboxSpec{
		"sandbox.image": {Image: "busybox:no:tag"}, "sandbox.required_services.db.image": service("postgres:no:tag"),
		"sandbox.memory": {Image: "i", Memory: 1 << 40}, "sandbox.tools[0]": {Image: "i", Tools: []string{"git"}},
	} {
		r := d.request(protocol.VerbCreate, "s1", "r-"+fmt.Sprint(len(field)),
			protocol.Request{Name: "web", Sandbox: &s})
		if r.Error == nil || r.Error.Field != field {
			t.Errorf("a create with an invalid %s is answered with %v", field, r.Error)
		}
		d.isFree("s1")
		if hold, _, err := d.conn.SandboxName(t.Context(), "default", "web"); hold != nil || err != nil {
			t.Errorf("a refused create took the name: %+v, %v", hold, err)
		}
	}
	d.mustName("web", "s1")
}

func TestAnIDIsFoundByAPrefixThatMatchesNoOther(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	id := func(text string) string { return text + strings.Repeat("0", 26-len(text)) }
	for _, text := range []string{"01aaa1", "01aaa2", "01bbb1", "01bbb2"} {
		d.create(id(text), protocol.SandboxSpec{Image: "i"})
	}
	d.create("01bb", protocol.SandboxSpec{Image: "i"})
	d.remove(id("01bbb1"))
	for ref, want := range map[string]string{"01aaa1": id("01aaa1"), "01bbb": id("01bbb2"), "01bbb1": id("01bbb1"),
		"01bb": "01bb", id("01aaa2"): id("01aaa2")} {
		if got, err := d.resolves(protocol.EndpointResolve, ref); got != want {
			t.Errorf("%s means sandbox %s, %v; want %s", ref, got, err, want)
		}
	}
	_, err := d.resolves(protocol.EndpointResolve, "01aaa")
	if err == nil || err.Code != protocol.FailedPrecondition || err.Reason != protocol.ReasonAmbiguousPrefix ||
		!strings.Contains(err.Message, id("01aaa1")+", "+id("01aaa2")) {
		t.Errorf("an ambiguous prefix is answered with %v", err)
	}
	for _, ref := range []string{"01a", "02bbb", "01bbbx", "web"} {
		if _, err := d.resolves(protocol.EndpointResolve, ref); err == nil || err.Code != protocol.NotFound {
			t.Errorf("a read of %s returns %v", ref, err)
		}
	}
	if _, err := d.resolves(protocol.EndpointGet, "01aaa1"); err == nil || err.Code != protocol.NotFound {
		t.Errorf("get accepts a prefix: %v", err)
	}
	if r := d.request(protocol.VerbDelete, "01aaa1", "r1", protocol.Request{}); r.Error == nil ||
		r.Error.Code != protocol.NotFound {
		t.Errorf("delete accepts a prefix: %v", r.Error)
	}
}

// A name is removed when the history of its last holder is purged. It is not removed when the history of an earlier
// holder is purged.
func TestANameIsPurgedWithTheHistoryOfItsSandbox(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.run(Config{Name: "c1", CleanupTTL: time.Millisecond,
		Timing: Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond}})()
	d.mustName("web", "s1")
	d.mustName("gone", "s2")
	d.remove("s1")
	d.mustName("web", "s3")
	d.remove("s2")
	d.eventually("the deleted sandboxes are purged", func() bool {
		purged, err := d.conn.Purged(t.Context(), "default", "s1")
		hold, _, nameErr := d.conn.SandboxName(t.Context(), "default", "gone")
		return err == nil && purged && nameErr == nil && hold == nil
	})
	if id, err := d.resolves(protocol.EndpointGet, "web"); id != "s3" {
		t.Errorf("the name web means sandbox %s, %v", id, err)
	}
	info := d.stream("KV_" + protocol.BucketNames)
	if info.State.Msgs != 1 {
		t.Errorf("%d names are kept, want 1", info.State.Msgs)
	}
	if _, err := d.resolves(protocol.EndpointGet, "gone"); err == nil || err.Code != protocol.NotFound {
		t.Errorf("a read of a purged sandbox returns %v", err)
	}
}

// A create that sets a name does not get an id that is the name of another living sandbox.
func TestANamedCreateDoesNotTakeANameForItsID(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	d.mustName("db", "s1")
	r := d.request(protocol.VerbCreate, "db", "r1",
		protocol.Request{Name: "other", Sandbox: &protocol.SandboxSpec{Image: "i"}})
	if !takenName(r) {
		t.Errorf("a create whose id is a name is answered with %+v, %v", r.Sandbox, r.Error)
	}
	d.isFree("db")
	if id, err := d.resolves(protocol.EndpointGet, "db"); id != "s1" {
		t.Errorf("the name db means sandbox %s, %v", id, err)
	}
}

// Two requests concurrently create the same id with the same name. The request that comes too late does not free the
// name.
func TestACreateThatLosesTheIDLeavesTheNameToItsOwner(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	var n atomic.Int32
	arrived, goOn := make(chan struct{}), make(chan struct{})
	defer d.run(Config{Name: "c1", Probe: func(p string) {
		if p == "create-before-reserve" && n.Add(1) == 1 {
			close(arrived)
			<-goOn
		}
	}})()
	answers, err := d.conn.Answers()
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	inbox, first, stop := answers.Expect("r1")
	defer stop()
	spec := &protocol.SandboxSpec{Image: "i"}
	create := protocol.Request{Version: protocol.Version, Name: "web", Sandbox: spec}
	// Do not use d.request: it repeats the create, and the Probe above stops only the first copy.
	if err := d.conn.Submit(t.Context(), "default", protocol.VerbCreate, "s1", "r1", inbox,
		protocol.Encode(&create)); err != nil {
		t.Fatal(err)
	}
	<-arrived
	if r := d.request(protocol.VerbCreate, "s1", "r2", create); r.Error != nil {
		t.Error(r.Error)
	}
	close(goOn)
	if r := <-first; r.Error == nil {
		t.Errorf("both creates succeed: %+v", r.Sandbox)
	}
	if id, err := d.resolves(protocol.EndpointGet, "web"); id != "s1" {
		t.Errorf("the name web means sandbox %s, %v", id, err)
	}
	if r := d.named("web", "s2"); !takenName(r) {
		t.Errorf("another create with the name is answered with %+v, %v", r.Sandbox, r.Error)
	}
}

// The bucket of names was lost, or names a sandbox that the log does not have. The living sandbox keeps its name.
func TestALivingSandboxKeepsANameThatTheBucketLost(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	for what, setBack := range map[string]func(){
		"lost": func() { d.emptied("KV_" + protocol.BucketNames) },
		"of an unknown sandbox": func() {
			hold, revision, err := d.conn.SandboxName(t.Context(), "default", "web")
			if err != nil || hold == nil {
				t.Fatal(hold, err)
			}
			if _, err := d.conn.TakeName(t.Context(), "default", "web", revision,
				protocol.NameHold{Sandbox: "gone", Request: "r", Before: hold.Sandbox,
					Stored: hold.Stored}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		id := "s" + what[:1]
		d.mustName("web", id)
		setBack()
		if got, err := d.resolves(protocol.EndpointGet, "web"); got != id {
			t.Errorf("%s: the name web means sandbox %s, %v", what, got, err)
		}
		if r := d.named("web", id+"2"); !takenName(r) {
			t.Errorf("%s: another create with the name is answered with %v", what, r.Error)
		}
		if r := d.request(protocol.VerbCreate, "web", "r-"+id,
			protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i"}}); !takenName(r) {
			t.Errorf("%s: a create whose id is the name is answered with %v", what, r.Error)
		}
		if r := d.request(protocol.VerbDelete, "web", "delete-"+id, protocol.Request{}); r.Error != nil ||
			r.Sandbox.ID != id {
			t.Errorf("%s: a delete by name is answered with %v", what, r.Error)
		}
	}
}
