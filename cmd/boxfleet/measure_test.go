package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestTheTableOfProcessesEscapesHostileCommands(t *testing.T) {
	second := protocol.Duration(time.Second)
	before := &protocol.ProcessList{Containers: []protocol.ContainerProcesses{{Boot: "b", Processes: []protocol.Process{
		{PID: 7, Started: second, At: 2 * second}, {PID: 8, Started: second, At: 2 * second}}}}}
	after := &protocol.ProcessList{Containers: []protocol.ContainerProcesses{
		{Service: "db", Error: protocol.Errorf(protocol.Unavailable, "", "no answer \x1b[31m")},
		{Boot: "b", More: 3, Processes: []protocol.Process{
			{PID: 7, Exec: "ex", UID: 1000, CPU: second, Memory: 3 << 20, Started: second, At: 4 * second,
				Command: "evil \x1b[2J\x07\n\u202e\xff" + strings.Repeat("x", 200)},
			{PID: 8, Primary: true, Started: 3 * second, At: 4 * second, Command: "reused"},
		}}}}
	var out bytes.Buffer
	printProcesses(&plainText{Writer: &out}, processesBetween(before, after))
	text := out.String()
	if strings.ContainsAny(text, "\x1b\x07\u202e") || strings.Contains(text, "\xff") {
		t.Errorf("the table has control characters: %q", text)
	}
	for _, want := range []string{`evil \x1b[2J\x07\n`, "50.0%", "3.0MiB", "(own command)", "0.0%",
		"3 more processes are not listed", "db: no answer"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if len([]rune(line)) > 140 {
			t.Errorf("a line has %d characters: %q", len([]rune(line)), line)
		}
	}
}
