package coordinator

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// wirePage returns the text of docs/wire.md.
func wirePage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// answered sends a request or query of the page, and returns the parts of the error that answers it: code, reason and
// field. It returns nil if there is no error.
func answered(t *testing.T, w *wire, what, sandbox, body string) []string {
	t.Helper()
	var reply struct{ Error *protocol.Error }
	if slices.Contains([]string{"create", "exec", "cancel", "stop", "resume", "delete", "extend"}, what) &&
		sandbox != "" {
		answers, _ := w.publish(what, sandbox, body)
		m, err := answers.NextMsg(15 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(m.Data, &reply); err != nil {
			t.Fatal(err)
		}
	} else {
		data, err := json.Marshal(w.read(what, body))
		if err == nil {
			err = json.Unmarshal(data, &reply)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if reply.Error == nil {
		return nil
	}
	e := reply.Error
	return slices.DeleteFunc([]string{string(e.Code), e.Reason, e.Field}, func(s string) bool { return s == "" })
}

// The commands of the page are run one after another, and their answers are compared with its tables.
func TestTheExamplesOfTheWirePageAreTrue(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	w, page := d.wire(), wirePage(t)
	_, commands, _ := strings.Cut(page, "```sh\n")
	commands, _, _ = strings.Cut(commands, "```")
	command := regexp.MustCompile(
		`^nats (?:pub --jetstream -H Boxfleet-Request:\w+ boxfleet\.v1\.request\.default\.(\w+)\.demo` +
			`|request boxfleet\.v1\.api\.default\.(\w+)) '(.*)'$`)
	tables := func() {
		row := regexp.MustCompile("(?m)^\\| `(\\w+)` `(\\{.*\\})` \\| (.*) \\|$")
		quoted := regexp.MustCompile("`([^`]+)`")
		tried := 0
		for _, part := range []string{"## Reads", "## Errors"} {
			_, text, _ := strings.Cut(page, "\n"+part+"\n")
			text, _, _ = strings.Cut(text, "\n## ")
			sandbox := ""
			if part == "## Errors" {
				sandbox = "demo"
			}
			for _, m := range row.FindAllStringSubmatch(text, -1) {
				var want []string
				for _, q := range quoted.FindAllStringSubmatch(m[3], -1) {
					want = append(want, q[1])
				}
				if got := answered(t, w, m[1], sandbox, m[2]); !slices.Equal(got, want) {
					t.Errorf("%s %s: the page says %q, and the coordinator answers %q", m[1], m[2], want, got)
				}
				tried++
			}
		}
		if tried < 25 {
			t.Errorf("only %d rows of the page were tried", tried)
		}
	}
	lines := strings.Split(strings.TrimSpace(commands), "\n")
	for _, line := range lines {
		m := command.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("the page has a line that is not a known command: %s", line)
		}
		if m[1] == protocol.VerbDelete {
			tables()
		}
		sandbox, what := "", m[2]
		if m[1] != "" {
			sandbox, what = "demo", m[1]
		}
		if why := answered(t, w, what, sandbox, m[3]); why != nil {
			t.Errorf("%s is answered with the error %q", line, why)
		}
		switch m[1] {
		case protocol.VerbCreate:
			d.begin("demo")
		case protocol.VerbExec:
			zero := 0
			d.append(d.conn, "demo",
				protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: "ex-1", Boot: "b"}},
				protocol.Event{Kind: protocol.ExecFinished,
					Exec: &protocol.ExecDetails{ID: "ex-1", ExitCode: &zero, Inline: true, StdoutBytes: 6,
						Stdout: []byte("Linux\n")}})
		}
	}
	if len(lines) < 8 {
		t.Errorf("the page has only %d commands", len(lines))
	}
}
