package protocol

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/scenario"
)

// Scenario files, testdata/fold/*.txt, have one event per line, followed by what the fold
// returned for it: the state, or the error.
//
//	# a comment
//	sandbox.assigned worker=w1 gen=1
//	  > 2 pending desired=ready gen=1@w1 …
//	exec.finished x1 code=0
//	  ! failed_precondition (invalid_state): …
//
// The first word is the kind. For an exec event the second is the exec's id, for a service event
// the service's name. Words of the form key=value are: seq (if not the next one), state and
// exec_state (what the event claims), request, reason, error (a reason), worker, host, gen, phase,
// boot, container, image, code, run, nospec. Event n happens n seconds after the start.
//
// Run the tests with -update to write the current outcomes; review the difference before committing
// it.
func TestFoldScenarios(t *testing.T) {
	scenario.Run(t, "testdata/fold/*.txt", *update, playScenario)
}

// playScenario folds the events of a scenario. It returns the scenario with the outcome of each event below the event.
func playScenario(text []byte) ([]byte, error) {
	var out bytes.Buffer
	s := &State{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "  "):
			continue // the outcome that the file expects; the actual outcome takes its place
		case line == "" || strings.HasPrefix(line, "#"):
			out.WriteString(line + "\n")
			continue
		}
		e, err := parseEvent(line, s.Sandbox.Sequence+1)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		out.WriteString(line + "\n")
		if err := s.Apply(e); err != nil {
			var typed *Error
			if !errors.As(err, &typed) {
				return nil, fmt.Errorf("%q: refused with %T", line, err)
			}
			out.WriteString("  ! " + typed.Error() + "\n")
			continue
		}
		out.WriteString("  > " + describeState(s) + "\n")
	}
	return out.Bytes(), lines.Err()
}

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func parseEvent(line string, next uint64) (*Event, error) {
	words := strings.Fields(line)
	e := &Event{Sequence: next, Kind: Kind(words[0]), Tenant: "t", Sandbox: "s"}
	words = words[1:]
	var box SandboxDetails
	subject, _, _ := strings.Cut(string(e.Kind), ".")
	if subject != "sandbox" && len(words) > 0 && !strings.Contains(words[0], "=") {
		if subject == "exec" {
			e.Exec = &ExecDetails{ID: words[0]}
		} else {
			e.Service = &ServiceDetails{Name: words[0]}
		}
		words = words[1:]
	}
	if subject == "primary" {
		e.Primary = &PrimaryDetails{}
	}
	if e.Kind == SandboxAccepted {
		box.Spec = goodSandbox()
	}
	if e.Kind == ExecAccepted && e.Exec != nil {
		e.Exec.Spec = goodExec()
	}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		number, _ := strconv.Atoi(value)
		switch key {
		case "seq":
			e.Sequence = uint64(number)
		case "state":
			e.State = SandboxState(value)
		case "exec_state":
			e.Exec.State = ExecState(value)
		case "request":
			e.Request = value
		case "reason":
			e.Reason = value
		case "error":
			e.Error = &Error{Code: Unavailable, Reason: value}
		case "worker":
			box.Worker = value
		case "host":
			box.HostID = value
		case "gen":
			box.Generation = uint64(number)
		case "phase":
			box.Phase = value
		case "container":
			box.Container = value
		case "image":
			box.Image = value
		case "boot":
			if e.Primary != nil {
				e.Primary.Boot = value
				continue
			}
			box.Boot = value
			if e.Exec != nil {
				e.Exec.Boot = value
			}
		case "code":
			if e.Primary != nil {
				e.Primary.ExitCode = &number
				continue
			}
			e.Exec.ExitCode = &number
		case "run":
			e.Primary.Restarts = number
		case "nospec":
			box.Spec = nil
			if e.Exec != nil {
				e.Exec.Spec = nil
			}
		default:
			return nil, fmt.Errorf("unknown word %q", word)
		}
	}
	if !reflect.DeepEqual(box, SandboxDetails{}) {
		e.Details = &box
	}
	e.Time = epoch.Add(time.Duration(e.Sequence) * time.Second)
	return e, nil
}

// describeState formats a state on one line, without empty fields. In place of each time, it shows the sequence of the
// event that set the time.
func describeState(s *State) string {
	b := &s.Sandbox
	words := []string{strconv.FormatUint(b.Sequence, 10), string(b.State), "desired=" + string(b.Desired)}
	add := func(key string, value any) {
		if text := fmt.Sprint(value); text != "" && text != "0" && text != "false" {
			words = append(words, key+"="+text)
		}
	}
	at := func(t time.Time) any {
		if t.IsZero() {
			return ""
		}
		return int(t.Sub(epoch) / time.Second)
	}
	if b.Generation > 0 {
		add("gen", fmt.Sprintf("%d@%s", b.Generation, b.Worker))
	}
	add("host", b.HostID)
	add("assigned", b.Assigned)
	add("resuming", b.Resuming)
	add("phase", b.Phase)
	add("boot", b.Boot)
	add("container", b.Container)
	add("image", b.Image)
	add("reason", b.Reason)
	if b.Error != nil {
		add("error", b.Error.Reason)
	}
	add("since", at(b.StateChangedAt))
	add("active_at", at(b.ActiveAt))
	if b.TotalExecs > 0 {
		add("execs", fmt.Sprintf("%d/%d", b.ActiveExecs, b.TotalExecs))
	}
	if p := b.Primary; p != nil {
		add("primary", describePrimary(p, at))
	}
	for _, id := range slices.Sorted(maps.Keys(s.Execs)) {
		add(id, describeExecState(s.Execs[id], at))
	}
	add("ended", strings.Join(s.Ended, ","))
	var requests []string
	for _, block := range s.Uses {
		for _, u := range block {
			requests = append(requests, u.ID)
		}
	}
	add("requests", strings.Join(requests, ","))
	return strings.Join(words, " ")
}

func describePrimary(p *PrimaryStatus, at func(time.Time) any) string {
	text := fmt.Sprintf("%s,%s,run:%d", p.State, p.Boot, p.Restarts)
	if p.ExitCode != nil {
		text += fmt.Sprintf(",code:%d", *p.ExitCode)
	}
	if p.Reason != "" {
		text += "," + p.Reason
	}
	return fmt.Sprintf("%s[%v]", text, at(p.Since))
}

func describeExecState(x *Exec, at func(time.Time) any) string {
	text := string(x.State)
	if x.Cancelling {
		text += ",cancelling"
	}
	if x.ExitCode != nil {
		text += fmt.Sprintf(",code:%d", *x.ExitCode)
	}
	for _, more := range []string{x.Boot, x.Reason} {
		if more != "" {
			text += "," + more
		}
	}
	if x.Error != nil {
		text += ",error:" + x.Error.Reason
	}
	return fmt.Sprintf("%s[%v-%v-%v]", text, at(x.AcceptedAt), at(x.StartedAt), at(x.EndedAt))
}
