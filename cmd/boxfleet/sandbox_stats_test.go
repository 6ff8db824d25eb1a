package main

import (
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestUnknownUseOfDisksIsNotZero(t *testing.T) {
	t.Parallel()
	none := protocol.Bytes(0)
	var out strings.Builder
	printUsage(&out, &shownStats{Containers: []shownUsage{
		{ContainerUsage: protocol.ContainerUsage{Read: &none, Written: &none}},
		{ContainerUsage: protocol.ContainerUsage{Service: "db"}},
	}})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"WRITTEN", "0B", "unknown"} {
		if i >= len(lines) || !strings.HasSuffix(strings.TrimSpace(lines[i]), want) {
			t.Fatalf("line %d of %q does not end with %s", i+1, lines, want)
		}
	}
}
