package protocol

import (
	"testing"

	"pgregory.net/rapid"
)

func anyID() *rapid.Generator[string] { return rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`) }

func TestSubjectsSplitIntoTheirParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tenant, verb, sandbox := anyID().Draw(t, "tenant"), anyID().Draw(t, "verb"), anyID().Draw(t, "sandbox")
		for _, user := range []string{"", anyID().Draw(t, "user")} {
			subject := RequestSubject(tenant, verb, sandbox)
			if user != "" {
				subject = UserRequestSubject(tenant, user, verb, sandbox)
			}
			gotTenant, gotUser, gotVerb, gotSandbox, ok := SplitRequestSubject(subject)
			if !ok || gotTenant != tenant || gotUser != user || gotVerb != verb || gotSandbox != sandbox {
				t.Fatalf("%s split into %q %q %q %q %v", subject, gotTenant, gotUser, gotVerb, gotSandbox, ok)
			}
		}
		for _, subject := range []string{EventSubject(tenant, sandbox), LiveSubject(tenant, sandbox)} {
			gotTenant, gotSandbox, ok := SplitEventSubject(subject)
			if !ok || gotTenant != tenant || gotSandbox != sandbox {
				t.Fatalf("%s split into %q %q %v", subject, gotTenant, gotSandbox, ok)
			}
		}
	})
}

func TestForeignSubjectsDoNotSplit(t *testing.T) {
	for _, subject := range []string{
		"", "boxfleet.v1.request.t.create", "boxfleet.v1.request.t.u.create.s.x", "boxfleet.v2.request.t.create.s",
		"boxfleet.v1.requests.t.create.s", "x.boxfleet.v1.request.t.create.s", "t.create.s",
		EventSubject("t", "s"), DeadSubject("t", "create", "s"),
	} {
		if tenant, _, verb, sandbox, ok := SplitRequestSubject(subject); ok {
			t.Errorf("%q split as a request: %q %q %q", subject, tenant, verb, sandbox)
		}
	}
	for _, subject := range []string{
		"", "boxfleet.v1.event.t", "boxfleet.v1.event.t.s.x", "boxfleet.v2.event.t.s", "t.s",
		RequestSubject("t", "create", "s"), AppendSubject("w", "t", "s"), LogSubject("t", "s", "e"),
		OutputSubject("H", "t", "s", "e"),
	} {
		if tenant, sandbox, ok := SplitEventSubject(subject); ok {
			t.Errorf("%q split as an event: %q %q", subject, tenant, sandbox)
		}
	}
}

func TestASubjectOfOutputIsSplitInBothForms(t *testing.T) {
	for subject, want := range map[string][4]string{
		OutputSubject("H", "t", "s", "e"): {"H", "t", "s", "e"},
		LogSubject("t", "s", "@db"):       {"", "t", "s", "@db"},
	} {
		host, tenant, sandbox, log, ok := SplitOutputSubject(subject)
		if got := [4]string{host, tenant, sandbox, log}; !ok || got != want {
			t.Errorf("%s: got %q, %v", subject, got, ok)
		}
	}
	for _, subject := range []string{
		"", "boxfleet.v1.out.H", "boxfleet.v1.out.H.t.s", "boxfleet.v1.out.H.t.s.e.x", "boxfleet.v1.log.t.s",
		"boxfleet.v1.log.H.t.s.e", "boxfleet.v1.parked.log", "boxfleet.v2.log.t.s.e", EventSubject("t", "s"),
	} {
		if _, _, _, _, ok := SplitOutputSubject(subject); ok {
			t.Errorf("%q was split", subject)
		}
	}
}

func TestSubjectsMatchTheDocumentation(t *testing.T) {
	for got, want := range map[string]string{
		RequestSubject("t", VerbCreate, "s"): "boxfleet.v1.request.t.create.s",
		EventSubject("t", "s"):               "boxfleet.v1.event.t.s",
		AppendSubject("w", "t", "s"):         "boxfleet.v1.append.w.t.s",
		LiveSubject("t", "*"):                "boxfleet.v1.live.t.*",
		WorkSubject("w", "t", "s"):           "boxfleet.v1.work.w.t.s",
		LogSubject("t", "s", "e"):            "boxfleet.v1.log.t.s.e",
		OutputSubject("H", "t", "s", "e"):    "boxfleet.v1.out.H.t.s.e",
		DeadSubject("t", VerbStop, "s"):      "boxfleet.v1.dead.t.stop.s",
		HeartbeatSubject("w"):                "boxfleet.v1.heartbeat.w",
		APISubject("t", EndpointGet):         "boxfleet.v1.api.t.get",
	} {
		if got != want {
			t.Errorf("want %s, got %s", want, got)
		}
	}
}
