package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/protocol"
)

// history folds decisions as a journal does.
type history struct {
	t     *testing.T
	state protocol.State
	kinds []protocol.Kind
}

func (h *history) do(events []protocol.Event, err error) error {
	h.t.Helper()
	if err != nil {
		return err
	}
	for i := range events {
		events[i].Tenant, events[i].Sandbox, events[i].Time = "default", "a", time.Unix(int64(len(h.kinds)), 0)
		h.kinds = append(h.kinds, events[i].Kind)
	}
	if err := h.state.Number(events); err != nil {
		h.t.Fatalf("a decision is not legal: %v", err)
	}
	return nil
}

func (h *history) must(events []protocol.Event, err error) {
	h.t.Helper()
	if err := h.do(events, err); err != nil {
		h.t.Fatal(err)
	}
}

// ready is the history of a sandbox that is ready on host h1.
func ready(t *testing.T) *history {
	h := &history{t: t}
	spec := protocol.SandboxSpec{Image: "i"}
	spec.Resolve()
	h.must(decideAccept(&h.state, "r1", "", &spec, nil))
	h.must(decideAssign(&h.state, 0, "w1", "h1", h.state.Sandbox.AcceptedSpec()))
	h.must([]protocol.Event{{Kind: protocol.SandboxReady}}, nil)
	return h
}

func TestS8_TwoStopsGiveOneHistoryOfOneStop(t *testing.T) {
	h := ready(t)
	h.must(decideStop(&h.state, "s1", protocol.ReasonStopRequested))
	before := len(h.kinds)
	h.must(decideStop(&h.state, "s2", protocol.ReasonStopRequested))
	if more := h.kinds[before:]; !slices.Equal(more, []protocol.Kind{protocol.SandboxUnchanged}) {
		t.Errorf("the second stop should only be remembered, but appended %v", more)
	}
	spec := protocol.ExecSpec{Command: []string{"true"}}
	if err := h.do(decideExec(&h.state, "x1", "x1", &spec, false,
		1000)); protocol.AsError(err).Reason != protocol.ReasonSandboxStopping {
		t.Errorf("an exec in a sandbox that is being stopped is answered with %v", err)
	}
	h.must(decideDelete(&h.state, "d1", protocol.ReasonDeleteRequested))
	if err := h.do(decideStop(&h.state, "s3",
		protocol.ReasonStopRequested)); protocol.CodeOf(err) != protocol.FailedPrecondition {
		t.Errorf("a stop of a sandbox that is being deleted is answered with %v", err)
	}
}

func TestARedeliveredRequestDecidesNothingTwice(t *testing.T) {
	h := ready(t)
	h.must(decideStop(&h.state, "s1", protocol.ReasonStopRequested))
	h.must([]protocol.Event{{Kind: protocol.SandboxStopped}}, nil)
	h.must(decideResume(&h.state, "u1"))
	h.must(decideAssign(&h.state, 1, "w1", "h1", &h.state.Sandbox.Spec))
	h.must([]protocol.Event{{Kind: protocol.SandboxReady}}, nil)
	before := len(h.kinds)
	// The answer to the stop s1 was lost, and the sandbox has been resumed since. The client repeats s1.
	h.must(decideStop(&h.state, "s1", protocol.ReasonStopRequested))
	h.must(decideResume(&h.state, "u1"))
	if len(h.kinds) != before {
		t.Errorf("redelivered requests appended %v", h.kinds[before:])
	}
}

// A request that finds nothing to change is remembered too, so that its repeat changes nothing later.
func TestARepeatedRequestThatChangedNothingChangesNothingLater(t *testing.T) {
	h := ready(t)
	h.must(decideResume(&h.state, "u0")) // the sandbox runs
	h.must(decideStop(&h.state, "s1", protocol.ReasonStopRequested))
	h.must(decideStop(&h.state, "s2", protocol.ReasonStopRequested)) // the sandbox is being stopped
	h.must([]protocol.Event{{Kind: protocol.SandboxStopped}}, nil)
	h.must(decideStop(&h.state, "s3", protocol.ReasonStopRequested)) // the sandbox is stopped
	before := len(h.kinds)
	h.must(decideResume(&h.state, "u0"))
	h.must(decideStop(&h.state, "", protocol.ReasonIdleTTL)) // without a request
	if len(h.kinds) != before {
		t.Errorf("the repeat of a resume that had found the sandbox running appended %v", h.kinds[before:])
	}
	h.must(decideResume(&h.state, "u1"))
	h.must(decideAssign(&h.state, 1, "w1", "h1", &h.state.Sandbox.Spec))
	h.must([]protocol.Event{{Kind: protocol.SandboxReady}}, nil)
	spec := protocol.ExecSpec{Command: []string{"true"}}
	h.must(decideExec(&h.state, "x1", "x1", &spec, false, 1000))
	h.must([]protocol.Event{{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: "x1"}}}, nil)
	h.must(decideCancel(&h.state, "k1", "x1"))
	h.must(decideCancel(&h.state, "k2", "x1")) // the exec is being cancelled already
	h.must([]protocol.Event{{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: "x1"}}}, nil)
	before = len(h.kinds)
	for _, id := range []string{"s1", "s2", "s3"} {
		h.must(decideStop(&h.state, id, protocol.ReasonStopRequested))
	}
	for _, id := range []string{"k1", "k2"} { // the exec has ended; a cancel with a new request id would be refused
		h.must(decideCancel(&h.state, id, "x1"))
	}
	if len(h.kinds) != before || h.state.Sandbox.Desired != protocol.StateReady {
		t.Errorf("repeats appended %v, and the sandbox should become %s", h.kinds[before:], h.state.Sandbox.Desired)
	}
}

func TestARequestIDMayBeUsedForOnlyOnePurpose(t *testing.T) {
	h := ready(t)
	spec := protocol.ExecSpec{Command: []string{"true"}}
	h.must(decideExec(&h.state, "rx", "x1", &spec, false, 1000))
	h.must(decideExec(&h.state, "x2", "x2", &spec, false, 1000))
	h.must(decideCancel(&h.state, "rc", "x2"))
	h.must(decideExtend(&h.state, "re", protocol.Duration(time.Hour), time.Unix(0, 0)))
	h.must(decideStop(&h.state, "rs", protocol.ReasonStopRequested))
	before := len(h.kinds)
	for id, use := range map[string]string{"rx": "exec of x1", "x2": "exec of x2", "rc": "cancel of x2", "re": "extend",
		"rs": "stop", "r1": "create"} {
		for verb, decide := range map[string]func() ([]protocol.Event, error){
			"exec": func() ([]protocol.Event, error) {
				return decideExec(&h.state, id, "another", &spec, false, 1000)
			},
			"cancel": func() ([]protocol.Event, error) { return decideCancel(&h.state, id, "x1") },
			"extend": func() ([]protocol.Event, error) {
				return decideExtend(&h.state, id, protocol.Duration(time.Hour), time.Unix(0, 0))
			},
			"stop":   func() ([]protocol.Event, error) { return decideStop(&h.state, id, "") },
			"resume": func() ([]protocol.Event, error) { return decideResume(&h.state, id) },
			"delete": func() ([]protocol.Event, error) { return decideDelete(&h.state, id, "") },
		} {
			if verb == use {
				continue
			}
			err := h.do(decide())
			if got := protocol.AsError(err); err == nil || got.Code != protocol.AlreadyExists ||
				got.Reason != protocol.ReasonRequestUsed || !strings.Contains(got.Message, use) {
				t.Errorf("the request id of the %s, used again for %s, is answered with %v", use, verb, err)
			}
		}
	}
	if len(h.kinds) != before {
		t.Errorf("refused requests appended %v", h.kinds[before:])
	}
}

func TestAResumeStaysOnItsHost(t *testing.T) {
	h := ready(t)
	h.must(decideStop(&h.state, "s1", ""))
	h.must([]protocol.Event{{Kind: protocol.SandboxStopped}}, nil)
	h.must(decideResume(&h.state, "u1"))
	hosts := []*protocol.Host{host("w1", 1), host("w2", 0)}
	hosts[0].HostID, hosts[1].HostID = "h1", "h2"
	if chosen, _ := placement.Place(&h.state.Sandbox, hosts, nil); chosen == nil || chosen.Worker != "w1" {
		t.Errorf("placed on %v, want w1", chosen)
	}
	hosts[0].State = protocol.HostLost
	if chosen, refusals := placement.Place(&h.state.Sandbox, hosts, nil); chosen != nil || len(refusals) != 2 {
		t.Errorf("with its host lost, the sandbox is placed on %v, with refusals %v", chosen, refusals)
	}
}

func TestACancelBeforeTheStartEndsTheExecAtOnce(t *testing.T) {
	h := ready(t)
	spec := protocol.ExecSpec{Command: []string{"true"}}
	h.must(decideExec(&h.state, "x1", "x1", &spec, false, 1000))
	h.must(decideCancel(&h.state, "k1", "x1"))
	if got := h.state.Execs["x1"].State; got != protocol.ExecStateCancelled {
		t.Errorf("the exec is %s", got)
	}
	if err := h.do(decideCancel(&h.state, "k2", "x1")); protocol.AsError(err).Reason != protocol.ReasonExecTerminal {
		t.Errorf("a cancel of an ended exec is answered with %v", err)
	}
	if err := h.do(decideCancel(&h.state, "k3", "nope")); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("a cancel of an unknown exec is answered with %v", err)
	}
}

func TestASandboxWithoutAHostIsDeletedAtOnce(t *testing.T) {
	h := &history{t: t}
	h.must(decideAccept(&h.state, "r1", "", &protocol.SandboxSpec{Image: "i"}, nil))
	h.must(decideDelete(&h.state, "d1", protocol.ReasonDeleteRequested))
	if h.state.Sandbox.State != protocol.StateDeleted {
		t.Errorf("the sandbox is %s", h.state.Sandbox.State)
	}
	before := len(h.kinds)
	h.must(decideDelete(&h.state, "d2", protocol.ReasonDeleteRequested))
	// A scheduler assigns the sandbox after reading an older state.
	h.must(decideAssign(&h.state, 0, "w1", "h1", h.state.Sandbox.AcceptedSpec()))
	if len(h.kinds) != before {
		t.Errorf("after the delete, %v were appended", h.kinds[before:])
	}
}

func TestFailingASandboxEndsItsExecsFirst(t *testing.T) {
	h := ready(t)
	for i := range 3 {
		h.must(decideExec(&h.state, fmt.Sprint("r-x", i), fmt.Sprint("x", i),
			&protocol.ExecSpec{Command: []string{"true"}}, false, 1000))
	}
	h.must(decideFail(&h.state, protocol.Errorf(protocol.Unavailable, protocol.ReasonHostLost, "gone")))
	if h.state.Sandbox.State != protocol.StateFailed || h.state.Sandbox.ActiveExecs != 0 {
		t.Errorf("the sandbox is %s with %d active execs", h.state.Sandbox.State, h.state.Sandbox.ActiveExecs)
	}
}

// TestDecisionsAreLegalInEveryState makes every decision in random states: each is refused with a typed error, or
// returns events that can be folded.
func TestDecisionsAreLegalInEveryState(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{t: t}
		spec := protocol.SandboxSpec{Image: "i"}
		exec := protocol.ExecSpec{Command: []string{"true"}}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			request := fmt.Sprint("r", rapid.IntRange(0, 20).Draw(rt, "request"))
			x := fmt.Sprint("x", rapid.IntRange(0, 4).Draw(rt, "exec"))
			var events []protocol.Event
			var err error
			switch rapid.IntRange(0, 11).Draw(rt, "decision") {
			case 0:
				events, err = decideAccept(&h.state, request, "", &spec, nil)
			case 1:
				events, err = decideStop(&h.state, request, protocol.ReasonStopRequested)
			case 2:
				events, err = decideResume(&h.state, request)
			case 3:
				if rapid.IntRange(0, 5).Draw(rt, "rarely") == 0 {
					events, err = decideDelete(&h.state, request, protocol.ReasonDeleteRequested)
				}
			case 4:
				events, err = decideExec(&h.state, request, x, &exec, false, 1000)
			case 5:
				events, err = decideCancel(&h.state, request, x)
			case 6:
				worker := h.state.Sandbox.Worker
				if worker == "" || !h.state.Sandbox.Resuming {
					worker = rapid.SampledFrom([]string{"w1", "w2"}).Draw(rt, "worker")
				}
				there := *h.state.Sandbox.AcceptedSpec()
				if rapid.Bool().Draw(rt, "with defaults") {
					there.User = worker
				}
				events, err = decideAssign(&h.state, h.state.Sandbox.Generation, worker, "h-"+worker, &there)
			case 7:
				if rapid.IntRange(0, 5).Draw(rt, "rarely") == 0 {
					events, err = decideFail(&h.state, protocol.Errorf(protocol.Unavailable, "", "x"))
				}
			case 8:
				events, err = decideFailExecs(&h.state, []string{x, "x0"},
					protocol.Errorf(protocol.Unavailable, "", "x"))
			case 9, 10, 11: // an event of the worker
				switch b := &h.state.Sandbox; {
				case b.State == protocol.StatePending && b.Assigned:
					events = []protocol.Event{{Kind: protocol.SandboxReady}}
				case b.State == protocol.StateReady && b.Desired == protocol.StateStopped && b.ActiveExecs == 0:
					events = []protocol.Event{{Kind: protocol.SandboxStopped}}
				case b.State == protocol.StateDeleting && b.ActiveExecs == 0:
					events = []protocol.Event{{Kind: protocol.SandboxDeleted}}
				}
			}
			if err != nil {
				if _, typed := err.(*protocol.Error); !typed {
					rt.Fatalf("a refusal is not a *protocol.Error: %v", err)
				}
				continue
			}
			h.must(events, nil)
		}
		if n := len(h.kinds); uint64(n) != h.state.Sandbox.Sequence {
			rt.Fatalf("%d events were appended, and the last one has the number %d", n, h.state.Sandbox.Sequence)
		}
	})
}
