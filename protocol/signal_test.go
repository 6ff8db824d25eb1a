package protocol

import (
	"fmt"
	"testing"
	"time"
)

func TestParseSignalTakesNamesAndNumbers(t *testing.T) {
	for text, want := range map[string]int{
		"INT": 2, "SIGINT": 2, "sigint": 2, "2": 2, "Kill": 9, "1": 1, "31": 31, "SIGPOLL": 29, "IO": 29, "64": 64, "34": 34,
		"RTMIN": 34, "SIGRTMIN+3": 37, "RTMAX": 64, "RTMAX-1": 63, "SYS": 31,
	} {
		got, err := ParseSignal("signal", text)
		if got != want || err != nil {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
		again, err := ParseSignal("signal", SignalName(got))
		if again != got || err != nil {
			t.Errorf("%s: its name %s means %d, %v", text, SignalName(got), again, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "32", "33", "65", "SIG", "SIGSIG", "SIG2", "FROB", "INT ", "RTMIN-1",
		"RTMIN+31",
		"RTMAX+1", "RTMIN+", "RTMIN+ 1", "RTMIN++1", "EXIT", "2\n", "\x00"} {
		if n, err := ParseSignal("signal", text); err == nil || AsError(err).Code != InvalidArgument ||
			AsError(err).Field != "signal" {
			t.Errorf("%q: got %d, %v, want invalid_argument for the field signal", text, n, err)
		}
	}
}

// signalling applies an event of a signal to the exec x1.
func signalling(t *testing.T, s *State, kind Kind, of uint64, outcome SignalOutcome) error {
	t.Helper()
	next := s.Sandbox.Sequence + 1
	return s.Apply(&Event{Sequence: next, Kind: kind, Time: time.Unix(int64(next), 0), Request: fmt.Sprint("rq", next),
		Actor: "anna", Exec: &ExecDetails{ID: "x1", Signal: &SignalDetails{Number: 10, Of: of, Outcome: outcome}}})
}

func TestAnExecRemembersItsNewestSignalsAndAllPendingOnes(t *testing.T) {
	s := stateAfter(t, situations["ready with running"])
	first := s.Sandbox.Sequence + 1
	for range KeptSignals {
		if err := signalling(t, s, ExecSignalRequested, 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	before := canonical(*s)
	if err := signalling(t, s, ExecSignalRequested, 0, ""); err == nil || !same(before, *s) {
		t.Errorf("one more pending signal than allowed: %v", err)
	}
	old := s.Execs["x1"].Signals
	if err := signalling(t, s, ExecSignalled, first+1, SignalDelivered); err != nil {
		t.Fatal(err)
	}
	if old[1].Outcome != SignalPending {
		t.Error("an event changed a state that others may share")
	}
	if err := signalling(t, s, ExecSignalled, first+1, SignalUnknown); err == nil {
		t.Error("a signal got a second outcome")
	}
	if err := signalling(t, s, ExecSignalRequested, 0, ""); err != nil {
		t.Fatal(err)
	}
	x := s.Execs["x1"]
	if len(x.Signals) != KeptSignals || len(x.PendingSignals()) != KeptSignals || x.Signals[0].Sequence != first {
		t.Errorf("the exec remembers %+v", x.Signals)
	}
	if u := s.UseOf(x.Signals[3].Request); u == nil || !u.Is(VerbSignal, "x1") {
		t.Errorf("the request of a signal was used for %+v", u)
	}
	e, err := parseEvent("exec.finished x1", s.Sandbox.Sequence+1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(e); err != nil {
		t.Fatal(err)
	}
	for _, g := range s.Execs["x1"].Signals {
		if g.Outcome != SignalUnknown {
			t.Errorf("after the end of the exec, a pending signal is %+v", g)
		}
	}
}

func TestRecentSignalsAreCountedByTheirTimes(t *testing.T) {
	s := stateAfter(t, situations["ready with running"])
	now := time.Unix(1_000_000, 0)
	for i := range 50 {
		verb := VerbSignal
		if i%2 == 0 {
			verb = VerbCancel
		}
		s.Uses = s.Uses.with(Use{ID: fmt.Sprint(i), Verb: verb, Exec: "x1",
			At: now.Add(time.Duration(i-49) * 2 * time.Second).Unix()})
	}
	if n := s.RecentSignals(now); n != 16 {
		t.Errorf("%d signals in the last minute, want 16", n)
	}
	if n := s.RecentSignals(now.Add(SignalWindow + time.Second)); n != 0 {
		t.Errorf("%d signals a minute later, want 0", n)
	}
}
