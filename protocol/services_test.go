package protocol

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// The fingerprint of a request is a hash of its encoded spec, so equal specs must have equal encodings.
func TestServicesHaveOneEncoding(t *testing.T) {
	spec := &SandboxSpec{Image: "x", RequiredServices: map[string]Service{}}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		spec.RequiredServices[name] = Service{Image: name}
	}
	first := Encode(spec)
	for range 50 {
		if !bytes.Equal(Encode(spec), first) {
			t.Fatal("the order of services is not stable")
		}
	}
	var again SandboxSpec
	if err := Decode(first, &again); err != nil || len(again.RequiredServices) != 6 ||
		again.RequiredServices["c"].Image != "c" {
		t.Errorf("decoded: %+v, %v", again.RequiredServices, err)
	}
}

func TestInvalidServicesAreRejectedByField(t *testing.T) {
	type S = SandboxSpec
	db := func(change func(*Service)) func(*S) {
		return func(s *S) {
			v := Service{Image: "postgres"}
			change(&v)
			s.RequiredServices = Services{"db": v}
		}
	}
	named := func(name string) func(*S) {
		return func(s *S) { s.OptionalServices = Services{name: {Image: "postgres"}} }
	}
	many := Services{}
	for i := range MaxServices + 1 {
		many[fmt.Sprint("s", i)] = Service{Image: "postgres"}
	}
	const field = "spec.required_services.db."
	checkRefused(t, goodSandbox, (*S).Validate, []refused[S]{
		{"without an image", db(func(v *Service) { v.Image = "" }), field + "image"},
		{"an empty command", db(func(v *Service) { v.Command = []string{""} }), field + "command[0]"},
		{"an invalid environment name", db(func(v *Service) { v.Env = map[string]string{"A B": ""} }), field + "env.A B"},
		{"an invalid user", db(func(v *Service) { v.User = "a b" }), field + "user"},
		{"negative cpu", db(func(v *Service) { v.CPU = -1 }), field + "cpu"},
		{"too little memory", db(func(v *Service) { v.Memory = 1 }), field + "memory"},
		{"too few pids", db(func(v *Service) { v.PIDs = 1 }), field + "pids"},
		{"too little disk", db(func(v *Service) { v.Disk = 1 }), field + "disk"},
		{"an unknown profile", db(func(v *Service) { v.Profile = "root" }), field + "profile"},
		{"a health check without a test", db(func(v *Service) { v.Healthcheck = &Healthcheck{} }),
			field + "healthcheck.test"},
		{"an empty test line", db(func(v *Service) { v.Healthcheck = &Healthcheck{Test: []string{"CMD-SHELL", ""}} }),
			field + "healthcheck.test"},
		{"a blank test line", db(func(v *Service) { v.Healthcheck = &Healthcheck{Test: []string{"CMD-SHELL", " \n"}} }),
			field + "healthcheck.test"},
		{"a test without a program", db(func(v *Service) { v.Healthcheck = &Healthcheck{Test: []string{"CMD", "", "a"}} }),
			field + "healthcheck.test"},
		{"a test of NONE and another word", db(func(v *Service) {
			v.Healthcheck = &Healthcheck{Test: []string{"NONE",
				"x"}}
		}), field + "healthcheck.test"},
		{"an interval with test NONE", db(func(v *Service) {
			v.Healthcheck = &Healthcheck{Test: []string{"NONE"}, Interval: DefaultHealthInterval}
		}), field + "healthcheck.interval"},
		{"retries with test NONE", db(func(v *Service) { v.Healthcheck = &Healthcheck{Test: []string{"NONE"}, Retries: 1} }),
			field + "healthcheck.retries"},
		{"a hook without a command", db(func(v *Service) { v.PostStart = []Hook{{}} }), field + "post_start[0].command"},
		{"a hook with too long a timeout", db(func(v *Service) {
			v.PostStart = []Hook{{Command: []string{"true"},
				Timeout: MaxHookTimeout + 1}}
		}), field + "post_start[0].timeout"},
		{"too many hooks", db(func(v *Service) { v.PostStart = make([]Hook, MaxHooks+1) }), field + "post_start"},
		{"a name in capitals", named("DB"), "spec.optional_services.DB"},
		{"a name with a dot", named("a.b"), "spec.optional_services.a.b"},
		{"the name localhost", named("localhost"), "spec.optional_services.localhost"},
		{"a required service that is also optional", func(s *S) {
			s.RequiredServices, s.OptionalServices = Services{"db": {Image: "postgres"}}, Services{"db": {Image: "postgres"}}
		}, "spec.optional_services.db"},
		{"too many services", func(s *S) { s.RequiredServices = many }, "spec.required_services"},
	})
}

func TestADisabledHealthCheckHasNoDefaults(t *testing.T) {
	spec := goodSandbox()
	spec.RequiredServices = Services{"db": {Image: "postgres", Healthcheck: &Healthcheck{Test: []string{"NONE"}}}}
	spec.Resolve()
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
	if h := spec.RequiredServices["db"].Healthcheck; h.Interval != 0 || h.Retries != 0 {
		t.Errorf("got %+v", h)
	}
}

// A replaced sandbox starts its services again. If the sandbox stays on its host, the services keep their status.
func TestServicesRestartOnAnotherHost(t *testing.T) {
	spec := goodSandbox()
	spec.RequiredServices = Services{"db": {Image: "postgres", PostStart: []Hook{{Command: []string{"true"}}}}}
	spec.OptionalServices = Services{"mail": {Image: "mail"}}
	s := &State{}
	apply := func(e Event) {
		t.Helper()
		e.Time = time.Unix(int64(s.Sandbox.Sequence)+1, 0)
		if err := s.Number([]Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	assigned := func(host string, generation uint64) Event {
		return Event{Kind: SandboxAssigned, Details: &SandboxDetails{Worker: host, HostID: host, Generation: generation}}
	}
	apply(Event{Kind: SandboxAccepted, Details: &SandboxDetails{Spec: spec}})
	apply(assigned("a", 1))
	apply(Event{Kind: ServiceHook, Service: &ServiceDetails{Name: "db", Hook: 1}})
	apply(Event{Kind: ServiceReady, Service: &ServiceDetails{Name: "db"}})
	apply(Event{Kind: ServiceFailed, Service: &ServiceDetails{Name: "mail"}, Error: Errorf(Internal, "", "x")})
	apply(assigned("b", 2))
	for name, required := range map[string]bool{"db": true, "mail": false} {
		want := ServiceStatus{State: ServiceStateStarting, Required: required, Since: time.Unix(6, 0)}
		if got := s.Sandbox.Services[name]; !same(got, want) {
			t.Errorf("%s is %s, want %s", name, show(got), show(want))
		}
	}

	apply(Event{Kind: ServiceReady, Service: &ServiceDetails{Name: "db"}})
	apply(Event{Kind: SandboxReady})
	apply(Event{Kind: SandboxStopRequested})
	apply(Event{Kind: SandboxStopped})
	apply(Event{Kind: SandboxResumeRequested})
	apply(Event{Kind: ServiceReady, Service: &ServiceDetails{Name: "mail"}})
	apply(assigned("b", 2))
	if got := s.Sandbox.Services["mail"]; got.State != ServiceStateReady || !got.Resumed {
		t.Errorf("after a resume mail is %s", show(got))
	}
}
