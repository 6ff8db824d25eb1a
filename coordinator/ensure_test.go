package coordinator

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// ensure asks for the living sandbox with a name; id is for the sandbox that the request may create.
func (d *deployment) ensure(name, id string, s *protocol.SandboxSpec) *protocol.Reply {
	d.t.Helper()
	return d.request(protocol.VerbCreate, id, "ensure-"+id, protocol.Request{Name: name, Sandbox: s, Ensure: true})
}

func (d *deployment) ensures(name, id string, s *protocol.SandboxSpec, want string) {
	d.t.Helper()
	r := d.ensure(name, id, s)
	if r.Error != nil || r.Sandbox.ID != want || r.Changed != (id == want) {
		d.t.Fatalf("%s with the new id %s is answered with %+v, changed %v, %v; want sandbox %s", name, id, r.Sandbox,
			r.Changed, r.Error, want)
	}
}

func differs(r *protocol.Reply, field string) bool {
	return r.Error != nil && r.Error.Code == protocol.FailedPrecondition &&
		r.Error.Reason == protocol.ReasonSpecDiffers && r.Error.Field == field
}

func TestEnsureFindsTheLivingSandboxOrCreatesIt(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.coordinator("c1", Timing{})
	app := &protocol.SandboxSpec{Image: "i", Env: map[string]string{"TOKEN": "secret"}}
	d.ensures("web", "s1", app, "s1")
	d.ensures("web", "s2", app, "s1")
	d.isFree("s2")
	other := &protocol.SandboxSpec{Image: "other", Env: map[string]string{"TOKEN": "changed"}, Memory: 1 << 30}
	r := d.ensure("web", "s3", other)
	if !differs(r, "sandbox") || !strings.Contains(r.Error.Message, "a different image, env.TOKEN, memory:") ||
		strings.Contains(r.Error.Message, "secret") || strings.Contains(r.Error.Message, "changed") {
		t.Errorf("another spec is answered with %v", r.Error)
	}
	d.isFree("s3")
	if r := d.ensure("web", "s4", &protocol.SandboxSpec{Image: "i"}); !differs(r, "sandbox.env.TOKEN") {
		t.Errorf("a spec without a field of the sandbox is answered with %v", r.Error)
	}
	stop()
	defer d.coordinator("c2", Timing{})()
	d.ensures("web", "s5", app, "s1")
}

// A sandbox that is being deleted, is deleted or has failed does not keep its name.
func TestEnsureReplacesASandboxThatHasEnded(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	app := &protocol.SandboxSpec{Image: "i"}
	d.ensures("web", "s1", app, "s1")
	d.work("s1", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.SandboxFailed,
			Error: &protocol.Error{Code: protocol.NotFound, Reason: protocol.ReasonImageNotFound, Message: "m"}}}
	})
	d.ensures("web", "s2", app, "s2")
	if r := d.request(protocol.VerbDelete, "s2", "delete", protocol.Request{}); r.Error != nil {
		t.Fatal(r.Error)
	}
	d.ensures("web", "s3", app, "s3")
	// A repeated request finds the present sandbox, not the one that it created.
	d.ensures("web", "s2", app, "s3")
}

func TestManyEnsuresAtOnceGetOneSandbox(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	for _, name := range []string{"c1", "c2"} {
		defer d.coordinator(name, Timing{})()
	}
	app := &protocol.SandboxSpec{Image: "i"}
	for round := range 5 {
		const n = 10
		found := make([]string, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				for try := 0; found[i] == "" && try < 100; try++ {
					r := d.ensure(fmt.Sprint("web", round), fmt.Sprintf("s%d-%d-%d", round, i, try), app)
					if r.Error == nil {
						found[i] = r.Sandbox.ID
					} else if !takenName(r) { // the create of another request is being decided
						t.Error(r.Error)
						return
					}
				}
			})
		}
		all.Wait()
		for _, id := range found {
			if id == "" || id != found[0] {
				t.Fatalf("the requests return %q, want one sandbox", found)
			}
		}
	}
}

// The defaults of the tenant may change, and a value that equals its default may be given or not.
func TestEnsureComparesWhatRequestsSay(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.run(Config{Name: "c1", Defaults: spec.Defaults{spec.EveryTenant: {Memory: 2 << 30}}})
	app := &protocol.SandboxSpec{Image: "i"}
	d.ensures("web", "s1", app, "s1")
	for i, same := range []*protocol.SandboxSpec{
		{Image: "i", Memory: 2 << 30},
		{Image: "i", CPU: protocol.DefaultCPU, Network: &protocol.Network{Mode: protocol.NetworkInternet}},
		{Image: "i", Env: map[string]string{}},
	} {
		d.ensures("web", fmt.Sprint("same", i), same, "s1")
	}
	if r := d.ensure("web", "s2", &protocol.SandboxSpec{Image: "i", Memory: protocol.DefaultMemory}); !differs(r,
		"sandbox.memory") {
		t.Errorf("a memory that differs from the tenant's default is answered with %v", r.Error)
	}
	stop()
	defer d.run(Config{Name: "c2", Defaults: spec.Defaults{spec.EveryTenant: {Memory: 3 << 30}}})()
	d.ensures("web", "s3", app, "s1")
	// The worker's defaults are part of the sandbox's spec, but nobody asked for them.
	h := host("w1", 0)
	h.Defaults = &protocol.SandboxSpec{PIDs: 77}
	d.register(h)
	d.eventually("the sandbox has the defaults of its worker", func() bool { return d.list()["s1"].Spec.PIDs == 77 })
	r := d.ensure("web", "s4", &protocol.SandboxSpec{Image: "i", Memory: 2 << 30, CPU: 2})
	if !differs(r, "sandbox.cpu") {
		t.Errorf("another spec is answered with %v", r.Error)
	}
	d.ensures("web", "s5", app, "s1")
}

func TestEnsureIsRefusedWhereACreateIs(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	app := &protocol.SandboxSpec{Image: "i"}
	if r := d.request(protocol.VerbCreate, "web", "r1", protocol.Request{Sandbox: app}); r.Error != nil {
		t.Fatal(r.Error)
	}
	r := d.ensure("web", "s1", app)
	if r.Error == nil || r.Error.Code != protocol.AlreadyExists || r.Error.Reason != protocol.ReasonNameIsID {
		t.Errorf("a name that is an id is answered with %v", r.Error)
	}
	r = d.request(protocol.VerbCreate, "s2", "r2", protocol.Request{Sandbox: app, Ensure: true})
	if r.Error == nil || r.Error.Code != protocol.InvalidArgument || r.Error.Field != "name" {
		t.Errorf("a request without a name is answered with %v", r.Error)
	}
}

// A quota without room for another sandbox does not keep clients from the sandbox that exists.
func TestEnsureNeedsNoRoomForASandboxThatExists(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	c, stop := d.inMemory(quotasOf("default: {waiting: 1}").config("c1"))
	defer stop()
	d.leads(c)
	app := &protocol.SandboxSpec{Image: "i"}
	d.ensures("web", "s1", app, "s1")
	if r := d.ensure("other", "s2", app); r.Error == nil || r.Error.Reason != protocol.ReasonQuotaWaiting {
		t.Errorf("a second sandbox is answered with %+v, %v", r.Sandbox, r.Error)
	}
	d.ensures("web", "s3", app, "s1")
}
