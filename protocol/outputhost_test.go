package protocol

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestOutputBelongsToTheHostsOfASandbox moves a sandbox from host to host and back, and checks at which times each host
// may publish the sandbox's output.
func TestOutputBelongsToTheHostsOfASandbox(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2031, 2, 3, 4, minute, 0, 0, time.UTC) }
	s := &State{}
	apply := func(minute int, kind Kind, d SandboxDetails) {
		t.Helper()
		e := Event{Sequence: s.Sandbox.Sequence + 1, Tenant: "t", Sandbox: "s", Kind: kind, Time: at(minute), Details: &d}
		if err := s.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	assign := func(minute int, host string, generation uint64) {
		apply(minute, SandboxAssigned, SandboxDetails{Worker: "w", HostID: host, Generation: generation})
		apply(minute, SandboxReady, SandboxDetails{})
	}
	apply(0, SandboxAccepted, SandboxDetails{Spec: &SandboxSpec{Image: "i"}})
	if hosts := s.OutputHosts(); len(hosts) != 0 {
		t.Errorf("before its placement a sandbox has output of %v", hosts)
	}
	assign(1, "h1", 1)
	before := s.Clone()
	ready := s
	s = &State{}
	apply(0, SandboxAccepted, SandboxDetails{Spec: &SandboxSpec{Image: "i"}})
	apply(1, SandboxAssigned, SandboxDetails{Worker: "w", HostID: "h1", Generation: 1})
	apply(10, SandboxAssigned, SandboxDetails{Worker: "w", HostID: "h2", Generation: 2}) // h1 was lost
	if h := s.OutputHosts(); len(h) != 2 || h[0].ID != "h1" || h[1].ID != "h2" || !h[0].Until.Equal(at(11)) {
		t.Errorf("a sandbox that moved before it was ready has output of %v", h)
	}
	s = ready
	apply(10, SandboxReplaced, SandboxDetails{})
	assign(11, "h2", 2)
	apply(20, SandboxReplaced, SandboxDetails{})
	assign(21, "h1", 3)
	covers := func(s *State, host string, minute int) bool {
		return slices.ContainsFunc(s.OutputHosts(), func(h OutputHost) bool { return h.ID == host && h.Covers(at(minute)) })
	}
	for _, c := range []struct {
		host   string
		minute int
		want   bool
	}{
		{"h1", 0, true}, {"h1", 11, true}, {"h1", 12, false}, {"h1", 18, false}, {"h1", 19, true}, {"h1", 1000, true},
		{"h2", 8, false}, {"h2", 9, true}, {"h2", 21, true}, {"h2", 22, false}, {"h3", 5, false},
	} {
		if got := covers(s, c.host, c.minute); got != c.want {
			t.Errorf("output of %s in minute %d: got %v", c.host, c.minute, got)
		}
	}
	if !covers(before, "h1", 1000) || len(before.OutputHosts()) != 1 {
		t.Errorf("a clone changed: %v", before.OutputHosts())
	}
	for i := range 3 * maxLeft {
		apply(30+i, SandboxReplaced, SandboxDetails{})
		assign(30+i, fmt.Sprint("host", i), uint64(4+i))
	}
	if n := len(s.OutputHosts()); n != maxLeft+1 {
		t.Errorf("the state names %d hosts", n)
	}
}
