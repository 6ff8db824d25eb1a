package protocol

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// failer has the methods that testing.TB and rapid.T share.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkInvariants checks the invariants of every state.
func checkInvariants(t failer, s *State) {
	t.Helper()
	b := &s.Sandbox
	active := s.Active()
	if b.ActiveExecs != len(active) || b.ActiveExecs > b.TotalExecs {
		t.Fatalf("ActiveExecs is %d, but %d execs are active, of %d in total", b.ActiveExecs, len(active), b.TotalExecs)
	}
	if len(s.Ended)+len(active) != len(s.Execs) {
		t.Fatalf("%d execs: %d active, %d ended: %v", len(s.Execs), len(active), len(s.Ended), s.Ended)
	}
	for _, id := range s.Ended {
		if x := s.Execs[id]; x == nil || !x.State.Terminal() || x.EndedAt.IsZero() {
			t.Fatalf("exec %s is listed as ended: %s", id, show(x))
		}
	}
	if s.Exists() != (b.Sequence > 0) {
		t.Fatalf("state %q at event %d", b.State, b.Sequence)
	}
	switch b.State {
	case StateNone:
		if !same(*s, State{}) {
			t.Fatalf("an empty history has a non-empty state: %s", show(s))
		}
	case StatePending:
		for _, x := range active { // the sandbox was replaced
			if x.State != ExecStateAccepted {
				t.Fatalf("exec %s of a pending sandbox is %s", x.ID, x.State)
			}
		}
	case StateStopped, StateFailed, StateDeleted:
		if len(active) > 0 {
			t.Fatalf("%s with %d active execs", b.State, len(active))
		}
	}
	desired := map[SandboxState][]SandboxState{
		StatePending: {StateReady}, StateReady: {StateReady, StateStopped}, StateStopped: {StateStopped},
		StateFailed:   {StateFailed},
		StateDeleting: {StateDeleted}, StateDeleted: {StateDeleted}, StateNone: {StateNone},
	}
	if !slices.Contains(desired[b.State], b.Desired) {
		t.Fatalf("state %s with desired state %q", b.State, b.Desired)
	}
	if b.Resuming && b.State != StatePending || b.Phase != "" && b.State != StatePending {
		t.Fatalf("%s, resuming %v, in phase %q", b.State, b.Resuming, b.Phase)
	}
	if assigned := b.Assigned; assigned && (b.Worker == "" || b.Generation == 0) || b.State == StateReady && !assigned ||
		assigned && slices.Contains([]SandboxState{StateStopped, StateFailed, StateDeleted}, b.State) {
		t.Fatalf("%s, assigned %v to %q in generation %d", b.State, assigned, b.Worker, b.Generation)
	}
	kept := 0
	for _, block := range s.Uses {
		kept += len(block)
	}
	if kept > keptUses+usesBlock {
		t.Fatalf("%d uses are stored", kept)
	}
}

// choices makes the random choices of a test, from rapid's generators or from a fuzzer's bytes.
type choices interface {
	// below returns a number from 0 to n-1.
	below(n int, what string) int
}

type rapidChoices struct{ t *rapid.T }

// below draws single bits, because rapid's ranges prefer small numbers, which would keep histories short.
func (c rapidChoices) below(n int, what string) int {
	v := 0
	for range bits.Len(uint(n)) {
		v *= 2
		if rapid.Bool().Draw(c.t, what) {
			v++
		}
	}
	return v % n
}

var execIDs = []string{"x1", "x2", "x3", ""}

// anyEvent returns an event, legal or illegal after s.
func anyEvent(c choices, s *State) *Event {
	id := execIDs[c.below(len(execIDs), "exec")]
	kinds := []Kind{"sandbox.unheard_of"}
	legalOnly := c.below(4, "any kind") != 0
	for _, row := range Transitions {
		if _, _, legal := expected(s, row.Kind, id); legal || !legalOnly {
			weight := 8
			if row.Kind == SandboxFailed || row.Kind == SandboxDeleteRequested {
				weight = 1 // these events end the history
			}
			if strings.HasPrefix(string(row.Kind), "exec.") {
				weight = 32 // an exec ends only after three events with the same id
			}
			kinds = append(kinds, slices.Repeat([]Kind{row.Kind}, weight)...)
		}
	}
	e := eventFor(s, kinds[c.below(len(kinds), "kind")])
	if e.Exec != nil {
		e.Exec.ID = id
	}
	switch c.below(32, "oddity") - 1 {
	case 0:
		e.Sequence += uint64(1 + c.below(3, "ahead"))
	case 1:
		e.Sequence -= min(e.Sequence, uint64(1+c.below(3, "behind")))
	case 2:
		e.State = StateReady
	case 3:
		e.Exec = nil
	case 4:
		e.Details = nil
	case 5:
		if e.Details != nil {
			e.Details.Generation++
		}
	case 6:
		if e.Exec != nil {
			e.Exec.State = ExecStateRunning
		}
	case 7, 8, 9:
		e.Request = fmt.Sprintf("rq%d", e.Sequence)
	}
	return e
}

// step applies an event to a clone of s, checks the invariants, and returns the new state.
func step(t failer, s *State, e *Event) (after *State, accepted bool) {
	t.Helper()
	before, event := canonical(*s), canonical(*e)
	after = s.Clone()
	err := after.Apply(e)
	if !same(before, *s) {
		t.Fatalf("%s on a clone changed the original", e.Kind)
	}
	if !same(event, *e) {
		t.Fatalf("%s was changed by applying it", e.Kind)
	}
	if err != nil {
		if CodeOf(err) != FailedPrecondition {
			t.Fatalf("%s was rejected with %v", e.Kind, err)
		}
		if !same(before, *after) {
			t.Fatalf("%s was rejected (%v) but changed\n%s\nto\n%s", e.Kind, err, show(before), show(after))
		}
		return s, false
	}
	if after.Sandbox.Sequence != s.Sandbox.Sequence+1 {
		t.Fatalf("event %d after event %d", after.Sandbox.Sequence, s.Sandbox.Sequence)
	}
	if s.Sandbox.State != after.Sandbox.State && !after.Sandbox.StateChangedAt.Equal(e.Time) {
		t.Fatalf("the state changed at %s, not at %s", e.Time, after.Sandbox.StateChangedAt)
	}
	checkInvariants(t, after)
	return after, true
}

func TestP2_HistoriesHaveNoGapsAndReplayToTheSameState(t *testing.T) {
	reached, ended := map[SandboxState]int{}, 0
	rapid.Check(t, func(t *rapid.T) {
		c := rapidChoices{t}
		s := &State{}
		var history []Event
		for range 1 + c.below(100, "events") {
			e := anyEvent(c, s)
			after, accepted := step(t, s, e)
			if accepted {
				stored := *e
				stored.State = after.Sandbox.State
				history = append(history, stored)
			}
			s = after
			reached[s.Sandbox.State]++ // at each step, because few histories end in a rare state
			ended += len(s.Ended)
			checkTrim(t, s, c.below(4, "keep"))
		}
		for i, e := range history {
			if e.Sequence != uint64(i+1) {
				t.Fatalf("event %d has sequence %d", i+1, e.Sequence)
			}
		}
		checkReplay(t, c, s, history)
	})
	for _, state := range []SandboxState{StatePending, StateReady, StateStopped, StateFailed, StateDeleting,
		StateDeleted} {
		if reached[state] == 0 {
			t.Errorf("no history reached %q: %v", state, reached)
		}
	}
	if ended == 0 {
		t.Error("no generated history ended an exec")
	}
}

// checkTrim checks that trimming a clone keeps the newest ended execs and all active ones, and that the original does
// not change.
func checkTrim(t failer, s *State, keep int) {
	t.Helper()
	before, trimmed := canonical(*s), s.Clone()
	trimmed.Trim(keep)
	checkInvariants(t, trimmed)
	want := s.Ended[max(0, len(s.Ended)-keep):]
	if !slices.Equal(trimmed.Ended, want) || len(trimmed.Active()) != len(s.Active()) {
		t.Fatalf("trimmed to %d: %v became %v, %d active became %d", keep, s.Ended, trimmed.Ended, len(s.Active()),
			len(trimmed.Active()))
	}
	if !same(before, *s) {
		t.Fatalf("trimming a clone changed the original")
	}
}

// checkReplay encodes the history as messages, decodes them and folds them. The result must be equal to want. Between
// messages it sometimes replaces the state with a decoded snapshot of the state.
func checkReplay(t failer, c choices, want *State, history []Event) {
	t.Helper()
	replayed := &State{}
	for len(history) > 0 {
		n := 1 + c.below(min(len(history), 5), "events of a batch")
		b, err := DecodeBatch(batchOf(history[:n]...).Encode(), 1)
		if err != nil {
			t.Fatalf("a batch does not decode: %v", err)
		}
		history = history[n:]
		for i := range b.Events {
			e := &b.Events[i]
			e.Record = 0 // the original events had no messages
			if err := replayed.Apply(e); err != nil {
				t.Fatalf("the replay rejected event %d: %v", e.Sequence, err)
			}
		}
		if c.below(3, "snapshot") == 0 {
			var snapshot State
			if err := Decode(Encode(replayed), &snapshot); err != nil {
				t.Fatalf("a snapshot does not decode: %v", err)
			}
			replayed = &snapshot
		}
	}
	if !same(*want, *replayed) {
		t.Fatalf("the replay differs\nwant %s\ngot  %s", show(want), show(replayed))
	}
}
