package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestApplyWaitsForWhatAnotherApplyMade(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	text := "id: a\nimage: x\nqueue_timeout: 15s\n"
	if code, stdout, stderr := call(t.Context(), text, "apply", "-f", "-", "--wait=false"); code != 0 ||
		stdout != "a created\n" {
		t.Fatalf("%d, %q, %s", code, stdout, stderr)
	}
	if code, stdout, stderr := call(t.Context(), text, "apply", "-f", "-", "--wait=false"); code != 0 ||
		stdout != "a unchanged\n" {
		t.Errorf("without a wait: %d, %q, %s", code, stdout, stderr)
	}
	code, stdout, stderr := call(t.Context(), text, "apply", "-f", "-", "-o", "json")
	var results []applied
	if err := json.Unmarshal([]byte(stdout), &results); err != nil || code != exitFailure || len(results) != 1 ||
		results[0].Result != resultFailed ||
		results[0].Sandbox.State != protocol.StateFailed || !strings.Contains(stderr, "sandbox a: ") {
		t.Errorf("it fails while it is waited for: %d, %q, %s", code, stdout, stderr)
	}
}
