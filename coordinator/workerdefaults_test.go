package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// accepted returns the history of a create that was accepted.
func accepted(t *testing.T, request protocol.SandboxSpec) *history {
	h := &history{t: t}
	resolved, defaulted := spec.Resolve(request)
	h.must(decideAccept(&h.state, "r1", "", &resolved, defaulted))
	return h
}

// assign assigns a sandbox to a host, as the scheduler does.
func (h *history) assign(to *protocol.Host) {
	h.t.Helper()
	there, err := placement.SpecOn(&h.state.Sandbox, to)
	if err != nil {
		h.t.Fatal(err)
	}
	h.must(decideAssign(&h.state, h.state.Sandbox.Generation, to.Worker, to.HostID, there))
}

func withDefaults(worker string, defaults protocol.SandboxSpec) *protocol.Host {
	h := host(worker, 0)
	h.Defaults = &defaults
	return h
}

func TestEachAssignmentStartsFromTheAcceptedSpec(t *testing.T) {
	h := accepted(t, protocol.SandboxSpec{Image: "i", CPU: 1, Env: map[string]string{"OWN": "request", "A": "request"}})
	before := h.state.Sandbox.Spec
	h.assign(withDefaults("w1", protocol.SandboxSpec{CPU: 3, Memory: 1 << 30, User: "one",
		Env: map[string]string{"A": "w1", "B": "w1"}, Tools: []string{"git"}}))
	b := &h.state.Sandbox
	if s := b.Spec; s.CPU != 1 || s.Memory != 1<<30 || s.User != "one" || s.Env["OWN"] != "request" ||
		s.Env["A"] != "request" || s.Env["B"] != "w1" || len(s.Tools) != 1 {
		t.Errorf("on w1, the spec is %+v", s)
	}
	if b.Accepted == nil || !spec.Equal(*b.Accepted, before) {
		t.Errorf("the accepted spec is %+v", b.Accepted)
	}
	h.assign(withDefaults("w2", protocol.SandboxSpec{Env: map[string]string{"B": "w2"}, PIDs: 99}))
	if s := b.Spec; s.Memory != protocol.DefaultMemory || s.PIDs != 99 || s.User != "" || s.Env["B"] != "w2" ||
		len(s.Tools) != 0 {
		t.Errorf("on w2, the spec still has defaults of w1: %+v", s)
	}
	h.assign(host("w3", 0))
	if !spec.Equal(b.Spec, before) || b.Accepted != nil {
		t.Errorf("on a worker without defaults, the spec is %+v, and the accepted spec %+v", b.Spec, b.Accepted)
	}
}

func TestAResumedSandboxKeepsItsSpec(t *testing.T) {
	h := accepted(t, protocol.SandboxSpec{Image: "i"})
	w1 := withDefaults("w1", protocol.SandboxSpec{Memory: 1 << 30})
	h.assign(w1)
	h.must([]protocol.Event{{Kind: protocol.SandboxReady}}, nil)
	h.must(decideStop(&h.state, "s1", ""))
	h.must([]protocol.Event{{Kind: protocol.SandboxStopped}}, nil)
	h.must(decideResume(&h.state, "u1"))
	w1.Defaults = &protocol.SandboxSpec{Memory: 9 << 30, User: "other"} // the operator has changed the worker's defaults
	w1.Memory = 2 << 30
	if chosen, refusals := placement.Place(&h.state.Sandbox, []*protocol.Host{w1}, nil); chosen == nil {
		t.Fatalf("the sandbox does not fit on its own host: %v", refusals)
	}
	changed := h.state.Sandbox.Spec
	changed.User = "other"
	if events, err := decideAssign(&h.state, h.state.Sandbox.Generation, "w1", w1.HostID, &changed); err != nil ||
		len(events) != 1 || events[0].Details.Spec != nil {
		t.Errorf("the assignment has another spec: %+v, %v", events, err)
	}
	h.assign(w1)
	if s := h.state.Sandbox.Spec; s.Memory != 1<<30 || s.User != "" {
		t.Errorf("got %+v", s)
	}
}

func TestPlacementUsesTheSpecAsItWouldBeOnTheHost(t *testing.T) {
	for name, c := range map[string]struct {
		request  protocol.SandboxSpec
		defaults protocol.SandboxSpec
		want     string // part of the refusal; "": the host accepts the sandbox
	}{
		"the default memory is too much": {protocol.SandboxSpec{}, protocol.SandboxSpec{Memory: 11 << 30},
			"11GiB of memory are wanted"},
		"the request asks for less memory": {protocol.SandboxSpec{Memory: 1 << 30}, protocol.SandboxSpec{Memory: 11 << 30},
			""},
		"a target that is in use": {
			protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: "/srv/cache", Target: "/t"}}},
			protocol.SandboxSpec{Tmpfs: []protocol.Tmpfs{{Target: "/t"}}},
			"spec.tmpfs[0].target: with the defaults of worker w1: is the same target"},
		"copies to a read-only root": {
			protocol.SandboxSpec{Copies: []protocol.Copy{{Digest: "sha256-" + strings.Repeat("0", 64), Target: "/c"}}},
			protocol.SandboxSpec{ReadOnly: true}, "spec.read_only: with the defaults of worker w1"},
		"a default tool that the host does not offer": {protocol.SandboxSpec{}, protocol.SandboxSpec{Tools: []string{"git"}},
			"spec.tools[0]: w1 does not offer git"},
		"mounts of the worker's defaults are allowed": {protocol.SandboxSpec{},
			protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: "/elsewhere", Target: "/t"}}}, ""},
		"mounts of the request are not": {
			protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: "/elsewhere", Target: "/x"}}},
			protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: "/srv/cache",
				Target: "/t"}}}, "spec.mounts[0].source: /elsewhere"},
	} {
		c.request.Image = "i"
		b := &accepted(t, c.request).state.Sandbox
		chosen, refusals := placement.Place(b, []*protocol.Host{withDefaults("w1", c.defaults)}, nil)
		if (chosen != nil) != (c.want == "") || !strings.Contains(refusals[0].Reason, c.want) {
			t.Errorf("%s: want %q, got %v", name, c.want, refusals)
		}
	}
}

func TestAWorkersPullDefaultCountsInPlacement(t *testing.T) {
	told := placement.Images{}
	missing, has := reporting("w1", 0, told), reporting("w2", 5, told, appImage)
	missing.Defaults = &protocol.SandboxSpec{Pull: protocol.PullNever}
	has.Defaults = &protocol.SandboxSpec{Pull: protocol.PullNever}
	b := &accepted(t, protocol.SandboxSpec{Image: "app"}).state.Sandbox
	if chosen, refusals := placement.Place(b, []*protocol.Host{missing, has}, told); chosen != has {
		t.Errorf("the sandbox is not placed on the host that has its image: %v", refusals)
	}
	b = &accepted(t, protocol.SandboxSpec{Image: "app", Pull: protocol.PullAlways}).state.Sandbox
	if _, refusals := placement.Place(b, []*protocol.Host{missing, has}, told); refusals[0].Reason != "" {
		t.Errorf("a sandbox that always pulls is refused: %v", refusals)
	}
}

func TestASandboxFailsWhereNoHostCouldTakeItWithItsDefaults(t *testing.T) {
	b := &accepted(t, protocol.SandboxSpec{Image: "i", Tmpfs: []protocol.Tmpfs{{Target: "/t"}}}).state.Sandbox
	conflict := withDefaults("w1", protocol.SandboxSpec{Tmpfs: []protocol.Tmpfs{{Target: "/t"}}})
	if why := placement.Impossible(b, []*protocol.Host{conflict}); why == nil || why.Field != "spec.tmpfs[1].target" ||
		!strings.Contains(why.Message, "worker w1") {
		t.Errorf("got %v", why)
	}
	if why := placement.Impossible(b, []*protocol.Host{conflict, host("w2", 10)}); why != nil {
		t.Errorf("another host could take the sandbox, but the error is %v", why)
	}
}

// A sandbox was assigned to a host that is lost now. The defaults of the lost host do not prevent another host from
// taking the sandbox.
func TestTheDefaultsOfALostHostDoNotCountAgainstOthers(t *testing.T) {
	h := accepted(t, protocol.SandboxSpec{Image: "i"})
	h.assign(withDefaults("w1", protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: "/only/there", Target: "/t"}},
		Runtime: "runsc"}))
	hosts := []*protocol.Host{host("w2", 0)}
	if why := placement.Impossible(&h.state.Sandbox, hosts); why != nil {
		t.Errorf("the sandbox fails: %v", why)
	}
	if chosen, refusals := placement.Place(&h.state.Sandbox, hosts, nil); chosen == nil {
		t.Errorf("the sandbox is not placed: %v", refusals)
	}
}

func TestDefaultsOfAWorkerAreInTheHistoryFromTheAssignmentOn(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	timing := Timing{Scan: 20 * time.Millisecond, Snapshot: 50 * time.Millisecond, Suspect: time.Minute}
	c, stop := d.inMemory(Config{Name: "c1", Timing: timing, Defaults: spec.Defaults{"default": {PIDs: 77}}})
	service := protocol.Services{"db": {Image: "i", Memory: 1 << 30}}
	for _, id := range []string{"a", "b"} {
		if r := d.request(protocol.VerbCreate, id, "create-"+id,
			protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i", RequiredServices: service}}); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	// With the worker's default memory there is room for one sandbox; with the built-in default there is room for both.
	host := &protocol.Host{Worker: "w1", HostID: "h1", Instance: "i1", Slots: 10, CPU: 1, Memory: 4 << 30,
		Healthy: true, Firewall: protocol.FirewallNFTables, SeenAt: time.Now(),
		Defaults: &protocol.SandboxSpec{Memory: 1200 << 20, PIDs: 99, User: "one"}}
	if err := d.conn.RegisterHost(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	d.eventually("sandbox a is assigned", func() bool { return d.list("pending")["a"].Assigned })
	check := func(when string) {
		t.Helper()
		if a := d.list()["a"]; a.Spec.Memory != 1200<<20 || a.Spec.PIDs != 77 || a.Spec.User != "one" ||
			a.Accepted == nil || a.Accepted.Memory != protocol.DefaultMemory {
			t.Errorf("%s: sandbox a is %+v", when, a)
		}
	}
	check("assigned")
	for range 5 {
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointExplain, &protocol.Query{Sandbox: "b"})
		if err != nil || len(reply.Explain.Hosts) != 1 ||
			!strings.Contains(reply.Explain.Hosts[0].Reason, "of memory are wanted") {
			t.Fatalf("the explanation of sandbox b is %+v, %v", reply, err)
		}
		d.schedulerPassed(c)
	}
	history, err := d.conn.History(t.Context(), "default", "a", 0)
	if err != nil || len(history) != 2 {
		t.Fatalf("the history has %d batches, %v; want 2", len(history), err)
	}
	first, second := history[0].Events[0].Details, history[1].Events[0].Details
	if !slices.Contains(first.Defaulted, "memory") || slices.Contains(first.Defaulted, "pids") ||
		first.Spec.Memory != protocol.DefaultMemory || second.Spec == nil || second.Spec.User != "one" {
		t.Errorf("the create has the details %+v, and the assignment %+v", first, second)
	}
	stop()
	defer d.run(Config{Name: "c1", Timing: timing})()
	check("after a restart of the coordinator")
}

func TestASandboxOfAnOlderCoordinatorKeepsItsAcceptedSpec(t *testing.T) {
	h := &history{t: t}
	whole := protocol.SandboxSpec{Image: "i"}
	whole.Resolve()
	h.must(decideAccept(&h.state, "r1", "", &whole, nil)) // an older coordinator did not record the defaulted fields
	h.assign(withDefaults("w1", protocol.SandboxSpec{Memory: 1 << 30, Runtime: "runsc"}))
	if s := h.state.Sandbox.Spec; s.Memory != protocol.DefaultMemory || s.Runtime != "runsc" {
		t.Errorf("got %+v", s)
	}
}

func BenchmarkPlaceOnHostsWithDefaults(b *testing.B) {
	var hosts []*protocol.Host
	for i := range 100 {
		hosts = append(hosts, withDefaults(fmt.Sprint("w", i),
			protocol.SandboxSpec{Env: map[string]string{"A": "a"}, Memory: 1 << 30,
				Tmpfs: []protocol.Tmpfs{{Target: "/tmp"}}}))
	}
	resolved, defaulted := spec.Resolve(protocol.SandboxSpec{Image: "i", Env: map[string]string{"B": "b", "C": "c"}})
	box := &protocol.Sandbox{State: protocol.StatePending, Spec: resolved, Defaulted: defaulted}
	for b.Loop() {
		if chosen, _ := placement.Place(box, hosts, nil); chosen == nil {
			b.Fatal("not placed")
		}
	}
}
