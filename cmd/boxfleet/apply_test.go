package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestApplyWaitsForASandboxThatAnotherApplyCreated(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	text := "id: a\nimage: x\nqueue_timeout: 6s\n"
	if code, stdout, stderr := call(t.Context(), text, "apply", "-f", "-", "--wait=false"); code != 0 ||
		stdout != "a created\n" {
		t.Fatalf("the first apply: exit code %d, stdout %q, stderr %s", code, stdout, stderr)
	}
	if code, stdout, stderr := call(t.Context(), text, "apply", "-f", "-", "--wait=false"); code != 0 ||
		stdout != "a unchanged\n" {
		t.Errorf("the second apply, with --wait=false: exit code %d, stdout %q, stderr %s", code, stdout, stderr)
	}
	code, stdout, stderr := call(t.Context(), text, "apply", "-f", "-", "-o", "json")
	var results []applied
	if err := json.Unmarshal([]byte(stdout), &results); err != nil || code != exitFailure || len(results) != 1 ||
		results[0].Result != resultFailed ||
		results[0].Sandbox.State != protocol.StateFailed || !strings.Contains(stderr, "sandbox a: ") {
		t.Errorf("apply waits for a sandbox that fails: exit code %d, stdout %q, stderr %s", code, stdout, stderr)
	}
}
