package sandbox

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// The supervisor is in the container, so the worker keeps the limits of a list of processes itself.
func TestAListOfProcessesIsBounded(t *testing.T) {
	one := protocol.Process{Exec: "../" + strings.Repeat("x", 1000), State: "long", Command: strings.Repeat("é", 1<<20)}
	table := &control.ProcessTable{More: -5}
	for range protocol.MaxProcesses + 3 {
		table.Processes = append(table.Processes, one)
	}
	list, more := bounded(table)
	if len(list) != protocol.MaxProcesses || more != 3 {
		t.Errorf("the list has %d processes and %d more, want %d and 3", len(list), more, protocol.MaxProcesses)
	}
	for _, p := range list {
		if p.Exec != "" || len(p.State) > 1 || len(p.Command) > protocol.MaxProcessCommand || !utf8.ValidString(p.Command) {
			t.Fatalf("a process has exec %.80q, state %q and a command of %d bytes", p.Exec, p.State, len(p.Command))
		}
	}
}
