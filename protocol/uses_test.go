package protocol

import (
	"fmt"
	"testing"
	"time"
)

// usesAfter returns a state with n requests, one minute apart.
func usesAfter(t testing.TB, n int) *State {
	t.Helper()
	s := &State{Sandbox: Sandbox{Tenant: "t", ID: "s", State: StateReady, Desired: StateReady, Request: "create"}}
	begin := time.Unix(1900000000, 0)
	for i := range n {
		e := &Event{Sequence: uint64(i + 1), Kind: SandboxUnchanged, Time: begin.Add(time.Duration(i) * time.Minute),
			Request: requestNumber(i),
			Details: &SandboxDetails{Verb: VerbCancel, Exec: requestNumber(i + n)}}
		if err := s.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func requestNumber(i int) string { return fmt.Sprintf("01k00000000000000000000%03x", i) } // as long as a ULID

func TestS8_UsesAreLimitedByAgeAndNumber(t *testing.T) {
	const many = keptUses + 500
	s := usesAfter(t, many)
	for i := many - keptUses; i < many; i++ {
		if u := s.UseOf(requestNumber(i)); u == nil || !u.Is(VerbCancel, requestNumber(i+many)) || u.Is(VerbCancel, "x") ||
			u.Is(VerbStop, "") {
			t.Fatalf("request %d was for %+v", i, u)
		}
	}
	if s.UseOf(requestNumber(0)) != nil || s.UseOf("") != nil || s.UseOf("never") != nil {
		t.Error("a use that is too old, or never existed, was found")
	}
	if u := s.UseOf("create"); u == nil || !u.Is(VerbCreate, "") || u.Is(VerbStop, "") {
		t.Errorf("the use of the create is %+v", u)
	}
	if size := len(Encode(s.Uses)); size > 80<<10 {
		t.Errorf("a thousand requests take %d bytes", size)
	}
	// Another request two days later drops all earlier blocks except one.
	last := &Event{Sequence: s.Sandbox.Sequence + 1, Kind: SandboxUnchanged,
		Time:    time.Unix(1900000000, 0).Add(many*time.Minute + 2*keptUsesFor),
		Request: "late", Details: &SandboxDetails{Verb: VerbStop}}
	if err := s.Apply(last); err != nil {
		t.Fatal(err)
	}
	if u := s.UseOf("late"); u == nil || !u.Is(VerbStop, "") || s.UseOf(requestNumber(many-100)) != nil ||
		len(s.Uses) > 2 {
		t.Errorf("%+v, %d blocks are kept", u, len(s.Uses))
	}
}

// Each kind of request has a use, and so do requests in a snapshot of an older version.
func TestS8_UseOfReturnsWhatARequestWasUsedFor(t *testing.T) {
	s := stateAfter(t, situations["ready with no exec"])
	apply := func(line string) {
		t.Helper()
		e, err := parseEvent(line, s.Sandbox.Sequence+1)
		if err == nil {
			err = s.Apply(e)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	for _, line := range []string{
		"exec.accepted x1 request=rx1", "exec.accepted x2 request=x2", "exec.accepted x3 request=rx3",
		"exec.cancelled x1 request=rc1",
		"exec.started x3", "exec.cancel_requested x3 request=rc3", "exec.failed x2", "exec.failed x3",
		"sandbox.stop_requested request=rs", "sandbox.stopped", "sandbox.resume_requested request=rr",
	} {
		apply(line)
	}
	s.Requests = []string{"old"}
	round := &State{}
	if err := Decode(Encode(s), round); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string][2]string{
		"rx1": {VerbExec, "x1"}, "x2": {VerbExec, "x2"}, "rc1": {VerbCancel, "x1"}, "rc3": {VerbCancel, "x3"},
		"rs": {VerbStop, ""},
		"rr": {VerbResume, ""}, "old": {VerbExtend, ""},
	} {
		for name, s := range map[string]*State{"fold": s, "snapshot": round} {
			if u := s.UseOf(id); u == nil || !u.Is(want[0], want[1]) || u.Is(VerbCreate, "") || u.Is(VerbExec, "other") ||
				u.Says() == "" {
				t.Errorf("%s: the use of %s is %+v", name, id, u)
			}
		}
	}
	if n := len(s.Uses[0]); n != 6 {
		t.Errorf("%d uses are stored, including x2, which Execs has: %v", n, s.Uses)
	}
}

// The cost of a clone does not grow with the number of uses.
func BenchmarkCloneAndApply(b *testing.B) {
	for _, n := range []int{0, keptUses} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := usesAfter(b, n)
			b.ReportAllocs()
			for b.Loop() {
				c := s.Clone()
				if err := c.Apply(&Event{Sequence: c.Sandbox.Sequence + 1, Kind: ExecAccepted, Request: "x",
					Exec: &ExecDetails{ID: "x", Spec: &ExecSpec{}}}); err != nil {
					b.Fatal(err)
				}
				if c.UseOf("y") != nil {
					b.Fatal("known")
				}
			}
		})
	}
}
