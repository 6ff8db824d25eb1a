package protocol

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
)

// situations maps the states that the rules distinguish to histories that lead to them. The first word of a name
// is the sandbox's state. The word after "with" is the state of the exec x1, if there is one.
var situations = func() map[string][]string {
	made := []string{"sandbox.accepted", "sandbox.assigned worker=w1 gen=1"}
	ready := append(slices.Clone(made), "sandbox.ready boot=b1")
	then := func(before []string, lines ...string) []string { return append(slices.Clone(before), lines...) }
	all := map[string][]string{
		"none": nil, "pending": made[:1], "pending assigned": made, "pending again": then(made,
			"sandbox.assigned worker=w2 gen=2"),
		"failed from none": {"sandbox.failed error=image_not_found"}, "failed from pending": then(made,
			"sandbox.failed error=no_host"),
		"deleting from pending": then(made, "sandbox.delete_requested"),
	}
	for name, exec := range map[string][]string{
		"no exec":   nil,
		"finished":  {"exec.accepted x1", "exec.started x1", "exec.finished x1 code=0"},
		"failed":    {"exec.accepted x1", "exec.failed x1"},
		"cancelled": {"exec.accepted x1", "exec.cancelled x1"},
		"timed_out": {"exec.accepted x1", "exec.started x1", "exec.timed_out x1"},
	} {
		used := then(ready, exec...)
		stopped := then(used, "sandbox.stop_requested", "sandbox.stopped")
		resumed := then(stopped, "sandbox.resume_requested")
		all["ready with "+name] = used
		all["ready stopping with "+name] = then(used, "sandbox.stop_requested")
		all["stopped with "+name] = stopped
		all["pending resuming with "+name] = resumed
		all["pending resuming assigned with "+name] = then(resumed, "sandbox.assigned worker=w1 gen=1")
		all["failed with "+name] = then(used, "sandbox.failed error=host_lost")
		all["deleting with "+name] = then(used, "sandbox.delete_requested")
		all["deleted with "+name] = then(used, "sandbox.delete_requested", "sandbox.deleted")
	}
	for name, exec := range map[string][]string{
		"accepted": {"exec.accepted x1"}, "running": {"exec.accepted x1", "exec.started x1"},
		"cancelling": {"exec.accepted x1", "exec.started x1", "exec.cancel_requested x1"},
	} {
		used := then(ready, exec...)
		all["ready with "+name] = used
		all["ready stopping with "+name] = then(used, "sandbox.stop_requested")
		all["deleting with "+name] = then(used, "sandbox.delete_requested")
	}
	return all
}()

func stateAfter(t testing.TB, lines []string) *State {
	t.Helper()
	s := &State{}
	for _, line := range lines {
		e, err := parseEvent(line, s.Sandbox.Sequence+1)
		if err == nil {
			err = s.Apply(e)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return s
}

// eventFor returns an event of this kind with everything it needs in this state.
func eventFor(s *State, kind Kind) *Event {
	line := string(kind)
	switch {
	case kind == SandboxAssigned && s.Sandbox.Resuming:
		line += fmt.Sprintf(" worker=%s gen=%d", s.Sandbox.Worker, s.Sandbox.Generation)
	case kind == SandboxAssigned:
		line += fmt.Sprintf(" worker=w9 gen=%d", s.Sandbox.Generation+1)
	case execTransitionOf[kind].Kind != "":
		line += " x1"
	case kind == ServiceReady || kind == ServiceFailed || kind == ServiceHook || kind == ServiceEnded:
		line += " db"
	case kind == PrimaryStarted || kind == PrimaryEnded:
		line += " boot=b1"
	}
	e, err := parseEvent(line, s.Sandbox.Sequence+1)
	if err != nil {
		panic(err)
	}
	switch kind {
	case ExecSignalRequested:
		e.Exec.Signal = &SignalDetails{Number: 2}
	case ExecSignalled:
		e.Exec.Signal = &SignalDetails{Number: 2, Of: 1, Outcome: SignalDelivered}
	}
	if kind == SandboxExtended {
		e.Details = &SandboxDetails{ExpiresAt: e.Time.Add(time.Hour)}
	}
	if kind == SandboxUsed {
		e.Streams = []StreamUse{{Kind: StreamKindDial, Opened: 1, Open: 1}}
	}
	return e
}

// expected returns whether an event of this kind is legal and which states it leads to, according to the tables
// and the rules documented with them. id is the exec of an exec event.
func expected(s *State, kind Kind, id string) (box SandboxState, exec ExecState, legal bool) {
	b := &s.Sandbox
	if x := s.Execs[id]; x != nil {
		exec = x.State
	}
	box = b.State
	i := slices.IndexFunc(Transitions, func(t Transition) bool { return t.Kind == kind })
	legal = slices.Contains(Transitions[i].From, b.State)
	if to := Transitions[i].To; to != StateNone {
		box = to
	}
	if i := slices.IndexFunc(ExecTransitions, func(t ExecTransition) bool { return t.Kind == kind }); i >= 0 {
		legal = legal && slices.Contains(ExecTransitions[i].From, exec)
		if to := ExecTransitions[i].To; to != "" {
			exec = to
		}
	}
	active := len(s.Active()) > 0
	switch kind {
	case SandboxPreparing, SandboxReady, SandboxRestarted, SandboxRefused:
		legal = legal && b.Assigned
	case SandboxReplaced:
		legal = legal && b.Desired == StateReady && !slices.ContainsFunc(s.Active(),
			func(x *Exec) bool { return x.State == ExecStateRunning })
	case SandboxStopRequested, ExecAccepted:
		legal = legal && b.Desired == StateReady
	case SandboxStopped:
		legal = legal && b.Desired == StateStopped && !active
	case SandboxFailed, SandboxDeleted:
		legal = legal && !active
	}
	return box, exec, legal
}

func TestApplyAcceptsExactlyTheTransitionsInTheTables(t *testing.T) {
	for name, history := range situations {
		for _, row := range Transitions {
			t.Run(name+"/"+string(row.Kind), func(t *testing.T) {
				s := stateAfter(t, history)
				before := canonical(*s)
				box, exec, legal := expected(s, row.Kind, "x1")
				err := s.Apply(eventFor(s, row.Kind))
				if !legal {
					wantError(t, err, FailedPrecondition, ReasonInvalidState, "")
					if !same(before, *s) {
						t.Fatalf("the rejected event changed\n%s\nto\n%s", show(before), show(s))
					}
					return
				}
				if err != nil {
					t.Fatalf("legal according to the tables, but rejected: %v", err)
				}
				if s.Sandbox.State != box {
					t.Errorf("want sandbox %q, got %q", box, s.Sandbox.State)
				}
				if x := s.Execs["x1"]; x != nil && x.State != exec {
					t.Errorf("want exec %q, got %q", exec, x.State)
				}
				checkInvariants(t, s)
			})
		}
	}
}

func TestSituationsCoverEveryStateInTheTables(t *testing.T) {
	tried := map[SandboxState]bool{}
	execs := map[ExecState]bool{}
	for _, history := range situations {
		s := stateAfter(t, history)
		checkInvariants(t, s)
		tried[s.Sandbox.State] = true
		for _, x := range s.Execs {
			execs[x.State] = true
		}
	}
	for _, row := range Transitions {
		for _, from := range append(row.From, row.To) {
			if !tried[from] {
				t.Errorf("no situation is %q", from)
			}
		}
	}
	for _, row := range ExecTransitions {
		if row.To != "" && !execs[row.To] {
			t.Errorf("no situation has an exec that is %q", row.To)
		}
	}
}

func TestEveryTransitionHasOneRowAndAnOwner(t *testing.T) {
	kinds := map[Kind]bool{}
	for _, row := range Transitions {
		if kinds[row.Kind] {
			t.Errorf("%s has two rows", row.Kind)
		}
		kinds[row.Kind] = true
		if row.Owner != OwnerCoordinator && row.Owner != OwnerWorker && row.Owner != OwnerEither {
			t.Errorf("%s has owner %q", row.Kind, row.Owner)
		}
	}
	for _, row := range ExecTransitions {
		if !kinds[row.Kind] {
			t.Errorf("%s has no row for the sandbox", row.Kind)
		}
	}
}

func TestNumberAssignsSequencesAndStates(t *testing.T) {
	s := stateAfter(t, situations["ready with no exec"])
	events := []Event{
		{Kind: ExecAccepted, Time: epoch, Exec: &ExecDetails{ID: "x1", Spec: goodExec()}},
		{Kind: ExecStarted, Time: epoch, Exec: &ExecDetails{ID: "x1"}},
		{Kind: SandboxStopRequested, Time: epoch},
	}
	if err := s.Number(events); err != nil {
		t.Fatal(err)
	}
	if events[0].Sequence != 4 || events[2].Sequence != 6 || events[2].State != StateReady ||
		events[0].Exec.State != ExecStateAccepted || events[1].Exec.State != ExecStateRunning {
		t.Errorf("%s", show(events))
	}
	wantError(t, s.Number([]Event{{Kind: SandboxStopped}}), FailedPrecondition, ReasonInvalidState, "")
}

// Two clones diverge. A change of one clone must not be visible in the other clone or in the original.
func TestClonesShareNothingThatChanges(t *testing.T) {
	apply := func(s *State, lines ...string) *State {
		for _, line := range lines {
			e, err := parseEvent(line, s.Sandbox.Sequence+1)
			if err == nil {
				err = s.Apply(e)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	s := stateAfter(t, situations["ready with no exec"])
	for i := range 2 * usesBlock { // enough to fill a block of uses, and to leave spare capacity in the lists
		id := fmt.Sprintf("e%d", i)
		s = apply(s, "exec.accepted "+id, "exec.accepted a"+id, "exec.accepted b"+id, "exec.failed "+id)
		before := canonical(*s)
		a, b := apply(s.Clone(), "exec.failed a"+id), apply(s.Clone(), "exec.failed b"+id)
		if a.Ended[len(a.Ended)-1] != "a"+id || b.Ended[len(b.Ended)-1] != "b"+id {
			t.Fatalf("clones share the list of ended execs: %v %v", a.Ended, b.Ended)
		}
		s = apply(s, "exec.failed a"+id, "exec.failed b"+id)
		a, b = apply(s.Clone(), "sandbox.stop_requested request=a"+id), apply(s.Clone(),
			"sandbox.stop_requested request=b"+id)
		if a.UseOf("a"+id) == nil || a.UseOf("b"+id) != nil || b.UseOf("b"+id) == nil || b.UseOf("a"+id) != nil {
			t.Fatalf("clones share the list of requests: %v %v", a.Uses, b.Uses)
		}
		if !reflect.DeepEqual(before.Uses, canonical(*s).Uses) {
			t.Fatalf("a clone changed the original's requests from %v to %v", before.Uses, s.Uses)
		}
		s = apply(s, "sandbox.stop_requested request="+id, "sandbox.stopped", "sandbox.resume_requested",
			"sandbox.assigned worker=w1 gen=1", "sandbox.ready")
	}
}

func TestExecTimesComeFromTheHostIfItReportsThem(t *testing.T) {
	s := stateAfter(t, situations["ready with running"])
	end := eventFor(s, ExecFinished)
	end.Record = 55
	end.Exec.Started, end.Exec.Ended = epoch.Add(time.Hour), epoch.Add(2*time.Hour)
	end.Exec.StdoutBytes, end.Exec.StderrBytes, end.Exec.Truncated, end.Exec.Inline = 3, 4, true, true
	if err := s.Apply(end); err != nil {
		t.Fatal(err)
	}
	x := s.Execs["x1"]
	if !x.StartedAt.Equal(end.Exec.Started) || !x.EndedAt.Equal(end.Exec.Ended) || x.StdoutBytes != 3 ||
		x.StderrBytes != 4 ||
		!x.Truncated || !x.Inline || x.Record != 55 || x.ExitCode != nil {
		t.Errorf("%s", show(x))
	}
}

func TestAnEndedExecDropsItsStdin(t *testing.T) {
	s := stateAfter(t, situations["ready with no exec"])
	accept := eventFor(s, ExecAccepted)
	accept.Exec.Spec.Stdin = []byte("secret")
	if err := s.Apply(accept); err != nil {
		t.Fatal(err)
	}
	running := s.Clone()
	if err := s.Apply(eventFor(s, ExecCancelled)); err != nil {
		t.Fatal(err)
	}
	if s.Execs["x1"].Spec.Stdin != nil || string(running.Execs["x1"].Spec.Stdin) != "secret" ||
		string(accept.Exec.Spec.Stdin) != "secret" {
		t.Error("stdin must be missing only after the end of the exec")
	}
}

func TestP3_OnlyATombstoneSetsADeletedState(t *testing.T) {
	tombstone := &Event{Sequence: 40, Kind: SandboxDeleted, Tenant: "t", Sandbox: "s", Reason: ReasonCleanupTTL,
		Time: epoch}
	s := &State{}
	if err := s.ApplyTombstone(tombstone); err != nil {
		t.Fatal(err)
	}
	if b := s.Sandbox; b.State != StateDeleted || b.Sequence != 40 || b.ID != "s" || b.Tenant != "t" || !b.HistoryPurged {
		t.Errorf("%s", show(b))
	}
	wantError(t, s.ApplyTombstone(tombstone), FailedPrecondition, ReasonSequenceNotKept, "")
	wantError(t, (&State{}).ApplyTombstone(&Event{Sequence: 40, Kind: SandboxReady}), FailedPrecondition,
		ReasonSequenceNotKept, "")
	accept, err := parseEvent("sandbox.accepted", 41)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Apply(accept), FailedPrecondition, ReasonInvalidState, "")
}
