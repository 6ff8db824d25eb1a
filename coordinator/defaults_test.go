package coordinator

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

func TestATenantsDefaultsApplyToItsRequests(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.run(Config{Name: "c1", Defaults: spec.Defaults{
		"*": {CPU: 4, Labels: map[string]string{"by": "all", "of": "all"}},
		"default": {Memory: 1 << 30, Labels: map[string]string{"by": "tenant"},
			Mounts: []protocol.Mount{{Source: "/cache", Target: "/cache"}}},
		"other": {PIDs: 99},
	}})
	request := protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i", Memory: 64 << 20,
		Labels: map[string]string{"mine": "1"}}}
	first := d.request(protocol.VerbCreate, "a", "r1", request)
	if first.Error != nil {
		t.Fatal(first.Error)
	}
	s := first.Sandbox.Spec
	if s.CPU != 4 || s.Memory != 64<<20 || s.PIDs != protocol.DefaultPIDs || len(s.Mounts) != 1 ||
		s.Labels["by"] != "tenant" || s.Labels["of"] != "all" || s.Labels["mine"] != "1" {
		t.Errorf("the sandbox's spec is %+v", s)
	}
	reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointDefaults, &protocol.Query{})
	if err != nil || reply.Defaults.CPU != 4 || reply.Defaults.Memory != 1<<30 || reply.Defaults.PIDs != 0 {
		t.Errorf("a read of the defaults returns %+v, %v", reply, err)
	}
	conflict := protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i",
		Mounts: []protocol.Mount{{Source: "/x", Target: "/cache"}}}}
	r := d.request(protocol.VerbCreate, "b", "r2", conflict)
	if r.Error == nil || r.Error.Code != protocol.InvalidArgument || r.Error.Field != "sandbox.mounts[1].target" ||
		!strings.Contains(r.Error.Message, "defaults of tenant default") {
		t.Errorf("a target that the defaults use is answered with %v", r.Error)
	}
	if _, err := d.conn.SandboxReservation(t.Context(), "default", "b"); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("a refused create took its id: %v", err)
	}
	stop()

	// A repeated request gets the same answer after the defaults have changed, even if the request's spec is invalid
	// with the new defaults.
	defer d.run(Config{Name: "c1", Defaults: spec.Defaults{"default": {Labels: map[string]string{strings.Repeat("x",
		64): "", "y": ""}, CPU: 2}}})()
	again := d.request(protocol.VerbCreate, "a", "r1", request)
	if again.Error != nil || again.Changed || again.Sandbox.Spec.CPU != 4 {
		t.Errorf("the repeated request is answered with %+v, %v", again.Sandbox, again.Error)
	}
}

func TestARepeatedCreateFindsItsSandboxAfterTheDefaultsChanged(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	mounting := protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i",
		Mounts: []protocol.Mount{{Source: "/x", Target: "/cache"}}}}
	stop := d.run(Config{Name: "c1"})
	if r := d.request(protocol.VerbCreate, "a", "r1", mounting); r.Error != nil {
		t.Fatal(r.Error)
	}
	stop()
	defer d.run(Config{Name: "c1", Defaults: spec.Defaults{"*": {Tmpfs: []protocol.Tmpfs{{Target: "/cache"}}}}})()
	if r := d.request(protocol.VerbCreate, "a", "r1", mounting); r.Error != nil || r.Sandbox == nil {
		t.Errorf("the repeated create is answered with %v", r.Error)
	}
	if r := d.request(protocol.VerbCreate, "b", "r2", mounting); r.Error == nil {
		t.Error("a new create that contradicts the defaults is not refused")
	}
	// Before the defaults changed, a create reserved the id c, but its first event was never appended.
	own := *mounting.Sandbox
	own.Resolve()
	if _, err := d.conn.ReserveSandbox(t.Context(), "default", "c",
		reservation(&jetstream.Delivery{ID: "r3"}, &own, time.Now())); err != nil {
		t.Fatal(err)
	}
	if r := d.request(protocol.VerbCreate, "c", "r3", mounting); r.Error == nil ||
		r.Error.Code != protocol.InvalidArgument {
		t.Errorf("a create that was never accepted is answered with %v", r.Error)
	}
}

func TestInvalidDefaultsAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	err := Run(context.Background(), Config{Conn: d.connect("c1"), Name: "c1", Defaults: spec.Defaults{"a": {CPU: -1}}})
	if err == nil || protocol.AsError(err).Field != "defaults.a.cpu" {
		t.Errorf("got %v", err)
	}
}
