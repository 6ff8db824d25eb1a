package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// An audit line names the user, the request's effect, and what it affected.
func TestTheAuditSaysWhoAskedForWhat(t *testing.T) {
	at := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	e := &protocol.Event{Sequence: 7, Kind: protocol.ExecAccepted, Time: at, State: protocol.StateReady, Tenant: "acme",
		Sandbox: "s1", Request: "r1", Actor: "alice",
		Exec: &protocol.ExecDetails{ID: "x1", Spec: &protocol.ExecSpec{Command: []string{"echo", "<a>"}}}}
	line, err := json.Marshal(auditLineOf(e, &protocol.Sandbox{Name: "web"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"actor":"alice"`, `"kind":"exec.accepted"`, `"exec":"x1"`, `"command":["echo"`,
		`"name":"web"`, `"seq":7`, `"time":"2031-02-03T04:05:06Z"`} {
		if !strings.Contains(string(line), want) {
			t.Errorf("%s lacks %s", line, want)
		}
	}
}
