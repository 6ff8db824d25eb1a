package protocol

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Every field of a sandbox either allows a worker default or explains why not.
func TestEveryFieldAllowsAWorkerDefaultOrExplainsWhyNot(t *testing.T) {
	known := slices.Concat(WorkerDefaults, slices.Collect(maps.Keys(noWorkerDefault)))
	typ := reflect.TypeFor[SandboxSpec]()
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if n := len(slices.DeleteFunc(slices.Clone(known), func(other string) bool { return other != name })); n != 1 {
			t.Errorf("%s is listed %d times", name, n)
		}
	}
	if len(known) != typ.NumField() {
		t.Errorf("%d fields are listed, but there are %d", len(known), typ.NumField())
	}
}

func TestInvalidWorkerDefaultsAreRejectedByField(t *testing.T) {
	all := SandboxSpec{Env: map[string]string{"A": "1"}, User: "1000", Cwd: "/w", CPU: 1, Memory: MinMemory, PIDs: 100,
		Disk: MinDisk, ShmSize: MinShm, ReadOnly: true,
		Tmpfs: []Tmpfs{{Target: "/t"}}, Profile: ProfileStandard, Runtime: "runsc", Pull: PullNever,
		Network: &Network{Mode: NetworkNone},
		Mounts:  []Mount{{Source: "/a", Target: "/b"}}, Tools: []string{"git"}, IdleTTL: 1, CreateTimeout: 1, Grace: 1}
	if err := ValidateWorkerDefaults(&all); err != nil {
		t.Error(err)
	}
	v := reflect.ValueOf(all)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && noWorkerDefault[jsonNameOf(v.Type().Field(i))] == "" {
			t.Errorf("%s is not tested", name)
		}
	}
	for want, s := range map[string]SandboxSpec{
		"worker.defaults.image: cannot have a worker default: each request": {Image: "i"},
		"worker.defaults.ttl: cannot have a worker default: it starts":      {TTL: 1},
		"worker.defaults.required_services: cannot":                         {RequiredServices: Services{"a": {Image: "i"}}},
		"worker.defaults.env.1A: name":                                      {Env: map[string]string{"1A": ""}},
		"worker.defaults.mounts[0].source: must":                            {Mounts: []Mount{{Source: "a", Target: "/b"}}},
		"worker.defaults: has": {Env: map[string]string{"A": strings.Repeat("x",
			MaxWorkerDefaults)}},
	} {
		if err := ValidateWorkerDefaults(&s); err == nil || !strings.HasPrefix(err.Error(), "invalid_argument: "+want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func jsonNameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func TestAnAssignmentSetsTheSpecForItsWorker(t *testing.T) {
	own, there := SandboxSpec{Image: "i"}, SandboxSpec{Image: "i", User: "one"}
	s := &State{}
	apply := func(e Event) *State {
		t.Helper()
		e.Sequence = s.Sandbox.Sequence + 1
		next := s.Clone()
		if err := next.Apply(&e); err != nil {
			t.Fatal(err)
		}
		s = next
		return s
	}
	assigned := func(spec *SandboxSpec) Event {
		return Event{Kind: SandboxAssigned, Details: &SandboxDetails{Worker: "w", HostID: "h",
			Generation: s.Sandbox.Generation + 1, Spec: spec}}
	}
	apply(Event{Kind: SandboxAccepted, Details: &SandboxDetails{Spec: &own, Defaulted: []string{"cpu"}}})
	first := apply(assigned(&there))
	if b := &first.Sandbox; b.Spec.User != "one" || b.AcceptedSpec().User != "" || b.Accepted == nil ||
		len(b.Defaulted) != 1 {
		t.Errorf("got %s", show(b))
	}
	again := apply(assigned(&SandboxSpec{Image: "i", User: "two"}))
	if b := &again.Sandbox; b.Spec.User != "two" || b.AcceptedSpec().User != "" {
		t.Errorf("on another worker: %s", show(b))
	}
	plain := apply(assigned(nil)) // writers of versions without worker defaults append such an assignment too
	if b := &plain.Sandbox; b.Spec.User != "" || b.Accepted != nil || b.AcceptedSpec() != &b.Spec {
		t.Errorf("on a worker without defaults: %s", show(b))
	}
	if first.Sandbox.Spec.User != "one" || again.Sandbox.Spec.User != "two" {
		t.Error("an earlier state was changed")
	}
	apply(assigned(&there))
	apply(Event{Kind: SandboxReady})
	apply(Event{Kind: SandboxStopRequested})
	apply(Event{Kind: SandboxStopped})
	apply(Event{Kind: SandboxResumeRequested})
	resumed := apply(Event{Kind: SandboxAssigned, Details: &SandboxDetails{Worker: "w", HostID: "h",
		Generation: s.Sandbox.Generation}})
	if b := &resumed.Sandbox; b.Spec.User != "one" || b.Accepted == nil {
		t.Errorf("resumed: %s", show(b))
	}
}
