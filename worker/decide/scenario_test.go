package decide

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/scenario"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

var update = flag.Bool("update", false, "write the present decisions to testdata")

// Scenario files, testdata/*.txt, have two kinds of lines. A line that begins with the kind of an event is an event
// that any writer appended. A line that begins with "decide" is a decision of the worker. Below it are the events that
// the decision returned, or "nothing".
//
//	# a comment
//	sandbox.assigned host=h1 gen=1
//	decide ready boot=b1
//	  > sandbox.ready boot=b1
//
// The events that a decision returns are in the log for the lines that follow. A decision has the name of its function,
// in lower case. Run the tests with -update to write the present decisions; review the difference before committing it.
func TestDecisionScenarios(t *testing.T) {
	scenario.Run(t, "testdata/*.txt", *update, play)
}

// play applies the lines of a scenario, and returns the scenario with the outcome below each decision.
func play(text []byte) ([]byte, error) {
	var out bytes.Buffer
	st := &protocol.State{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "  ") {
			continue // the line is an outcome, which play writes again
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		w, err := parseWords(line)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		events, err := w.events(st)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		for i := range events {
			events[i].Tenant, events[i].Sandbox, events[i].Time = "t", "s", time.Unix(int64(st.Sandbox.Sequence), 0).UTC()
		}
		if err := st.Number(events); err != nil {
			return nil, fmt.Errorf("%q is not legal: %w", line, err)
		}
		if w.first != "decide" {
			continue
		}
		for i := range events {
			out.WriteString("  > " + describe(&events[i]) + "\n")
		}
		if len(events) == 0 {
			out.WriteString("  > nothing\n")
		}
	}
	return out.Bytes(), lines.Err()
}

// words are the words of a scenario's line: first bare words, then words of the form key=value.
type words struct {
	first  string
	bare   []string
	values map[string]string
}

func parseWords(line string) (*words, error) {
	w := &words{values: map[string]string{}}
	for i, word := range strings.Fields(line) {
		key, value, assigned := strings.Cut(word, "=")
		switch {
		case i == 0:
			w.first = word
		case assigned:
			w.values[key] = value
		case len(w.values) > 0:
			return nil, fmt.Errorf("the bare word %q follows a key=value word", word)
		default:
			w.bare = append(w.bare, word)
		}
	}
	return w, nil
}

func (w *words) has(key string) bool { return w.values[key] != "" }

// number returns a number of the line, or 0 if the line does not have it.
func (w *words) number(key string) int {
	if !w.has(key) {
		return 0
	}
	n, err := strconv.Atoi(w.values[key])
	if err != nil {
		panic(err) // the scenario file is wrong
	}
	return n
}

// duration returns a duration of the line, or 0 if the line does not have it.
func (w *words) duration(key string) time.Duration {
	if !w.has(key) {
		return 0
	}
	d, err := time.ParseDuration(w.values[key])
	if err != nil {
		panic(err) // the scenario file is wrong
	}
	return d
}

func (w *words) code() *int {
	if !w.has("code") {
		return nil
	}
	n := w.number("code")
	return &n
}

// why returns an error with the reason of the line, or nil if the line has no reason.
func (w *words) why() *protocol.Error {
	if !w.has("reason") {
		return nil
	}
	return protocol.Errorf(protocol.FailedPrecondition, w.values["reason"], "a message")
}

func (w *words) events(st *protocol.State) ([]protocol.Event, error) {
	if w.first != "decide" {
		return w.logged()
	}
	if len(w.bare) == 0 {
		return nil, fmt.Errorf("the line does not name a decision")
	}
	known := false
	host, generation := cmp.Or(w.values["host"], "h1"), uint64(w.number("gen"))
	if generation == 0 {
		generation = st.Sandbox.Generation
	}
	events := Here(st, host, generation, func(st *protocol.State) (events []protocol.Event) {
		events, known = w.decide(st, host)
		return events
	})
	if !known && st.Sandbox.HostID == host && st.Sandbox.Generation == generation {
		return nil, fmt.Errorf("there is no decision %q", w.bare[0])
	}
	return events, nil
}

// decide returns the events of the decision that the line names.
func (w *words) decide(st *protocol.State, host string) (events []protocol.Event, known bool) {
	id := ""
	if len(w.bare) > 1 {
		id = w.bare[1]
	}
	boot := w.values["boot"]
	run := w.run()
	switch w.bare[0] {
	case "refused":
		return Refused(st, "no memory is free"), true
	case "phases":
		return Phases(st, w.phases(), nil), true
	case "ready":
		return Phases(st, w.phases(), Ready(st, run, &protocol.SandboxDetails{Boot: boot, Container: "c1"})), true
	case "resumed":
		return Resumed(st, boot, nil), true
	case "restarted":
		return Restarted(st, w.values["reason"], boot, nil), true
	case "waiting":
		return Waiting(st, w.why()), true
	case "pull":
		return PullProgress(st, w.values["phase"], &protocol.PullProgress{Image: "i"}), true
	case "primary":
		return Primary(st, run), true
	case "stopped":
		return Stopped(st, run), true
	case "hook":
		return Hook(st, protocol.Event{Kind: protocol.SandboxHook, Error: w.why(),
			Details: &protocol.SandboxDetails{Phase: "on_delete", ExitCode: w.code()}}), true
	case "deleted":
		return Deleted(st, run), true
	case "failed":
		return Failed(st, run, w.why()), true
	case "exec_start":
		return ExecStart(st, id, boot, w.duration("waited")), true
	case "service_down":
		return ServiceDown(st, id, "db"), true
	case "exec_unstartable":
		return ExecUnstartable(st, id, w.why()), true
	case "signalled":
		return Signalled(st, id, w.signal(), w.outcome(w.values["outcome"])), true
	case "last_signals":
		return LastSignals(st, id, w.outcomes(), uint64(w.number("asked"))), true
	case "used":
		return Used(st, w.uses()), true
	case "exec_end":
		return ExecEnd(st, w.result(), &protocol.ExecDetails{ID: id, ExitCode: w.code()}, w.has("ending")), true
	case "service_ready":
		return Service(st, host, ServiceReady(id)), true
	case "service_failed":
		return Service(st, host, ServiceFailed(id, w.why())), true
	case "service_hook":
		return Service(st, host, ServiceHook(id, w.number("hook"), w.code(), nil, w.why())), true
	case "service_ended":
		status := st.Sandbox.Services[id]
		return Service(st, host, ServiceEnded(id, boot, &status, &run.Primary)), true
	}
	return nil, false
}

// run returns the supervisor's report that the line describes with the keys code, restarts and oom, and with the key
// running if the command runs.
func (w *words) run() *PrimaryRun {
	return &PrimaryRun{Boot: w.values["boot"], Primary: control.Primary{
		Running: w.has("running"), Restarts: w.number("restarts"), LastExit: w.code(), OOMKills: w.number("oom"),
	}}
}

func (w *words) result() *control.Result {
	return &control.Result{ExitCode: w.code(), TimedOut: w.has("timed_out"), Cancelled: w.has("cancelled"),
		Failed: w.has("reason"), Error: w.why(), OOMKills: w.number("oom")}
}

// signal returns the sequence number of the signal in the key of.
func (w *words) signal() uint64 { return uint64(w.number("of")) }

// outcome returns the supervisor's answer to a signal.
func (w *words) outcome(outcome string) control.SignalResult {
	return control.SignalResult{Outcome: protocol.SignalOutcome(outcome), Processes: w.number("processes"), Error: w.why()}
}

// outcomes returns the supervisor's answers to signals: for answers=4:delivered,5:unknown those to the signals 4 and 5.
func (w *words) outcomes() map[uint64]control.SignalResult {
	all := map[uint64]control.SignalResult{}
	for _, answer := range w.list("answers") {
		of, outcome, _ := strings.Cut(answer, ":")
		n, err := strconv.ParseUint(of, 10, 64)
		if err != nil {
			panic(err) // the scenario file is wrong
		}
		all[n] = w.outcome(outcome)
	}
	return all
}

// uses returns the uses of streams: for uses=dial,file one of each kind.
func (w *words) uses() (uses []protocol.StreamUse) {
	for _, kind := range w.list("uses") {
		uses = append(uses, protocol.StreamUse{Kind: kind, Opened: 1})
	}
	return uses
}

// list returns the values of a key: a and b for key=a,b.
func (w *words) list(key string) []string {
	return strings.FieldsFunc(w.values[key], func(r rune) bool { return r == ',' })
}

// phases returns the phases that the worker entered: a and b for phase=a,b.
func (w *words) phases() (events []protocol.Event) {
	for _, phase := range w.list("phase") {
		events = append(events, protocol.Event{Kind: protocol.SandboxPreparing,
			Details: &protocol.SandboxDetails{Phase: phase}})
	}
	return events
}

// logged returns the event in the log that the line describes.
func (w *words) logged() ([]protocol.Event, error) {
	e := protocol.Event{Kind: protocol.Kind(w.first), Reason: w.values["reason"], Error: w.why()}
	box := &protocol.SandboxDetails{Worker: "w1", HostID: w.values["host"], Generation: uint64(w.number("gen")),
		Boot: w.values["boot"]}
	id := ""
	if len(w.bare) > 0 {
		id = w.bare[0]
	}
	switch subject, _, _ := strings.Cut(w.first, "."); {
	case e.Kind == protocol.SandboxAccepted:
		spec := &protocol.SandboxSpec{Image: "i", Memory: 1 << 20}
		if w.has("command") {
			spec.Command = []string{w.values["command"]}
		}
		if w.has("service") {
			spec.RequiredServices = map[string]protocol.Service{w.values["service"]: {Image: "i"}}
		}
		spec.Resolve()
		box.Spec = spec
		e.Details = box
	case subject == "exec":
		e.Exec = &protocol.ExecDetails{ID: id, Boot: w.values["boot"], ExitCode: w.code()}
		if e.Kind == protocol.ExecSignalRequested {
			e.Exec.Signal = &protocol.SignalDetails{Number: w.number("signal")}
		}
		if e.Kind == protocol.ExecAccepted {
			e.Exec.Spec = &protocol.ExecSpec{Command: []string{"true"}, Service: w.values["service"]}
		}
	case subject == "sandbox":
		e.Details = box
	default:
		return nil, fmt.Errorf("scenarios cannot have an event of this kind in the log")
	}
	return []protocol.Event{e}, nil
}

// describe formats an event on one line, without empty fields.
func describe(e *protocol.Event) string {
	text := []string{string(e.Kind)}
	add := func(key string, value any) {
		if s := fmt.Sprint(value); s != "" && s != "0" && s != "false" {
			text = append(text, key+"="+s)
		}
	}
	code := func(exit *int) {
		if exit != nil {
			text = append(text, fmt.Sprintf("code=%d", *exit))
		}
	}
	switch {
	case e.Exec != nil:
		text = append(text, e.Exec.ID)
		add("boot", e.Exec.Boot)
		code(e.Exec.ExitCode)
		add("inline", e.Exec.Inline)
		if g := e.Exec.Signal; g != nil {
			add("of", g.Of)
			add("signal", g.Number)
			add("outcome", g.Outcome)
			add("processes", g.Processes)
		}
	case e.Service != nil:
		text = append(text, e.Service.Name)
		add("hook", e.Service.Hook)
		add("ends", e.Service.Ends)
		code(e.Service.ExitCode)
	case e.Primary != nil:
		add("boot", e.Primary.Boot)
		text = append(text, fmt.Sprintf("run=%d", e.Primary.Restarts))
		code(e.Primary.ExitCode)
	case e.Details != nil:
		add("phase", e.Details.Phase)
		add("boot", e.Details.Boot)
		add("container", e.Details.Container)
		add("pull", e.Details.Pull != nil)
		code(e.Details.ExitCode)
	}
	for _, u := range e.Streams {
		text = append(text, u.Kind)
	}
	add("reason", e.Reason)
	if e.Error != nil {
		add("error", e.Error.Code)
	}
	return strings.Join(text, " ")
}
