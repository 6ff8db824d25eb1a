package worker

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/sandbox"
)

// A worker whose work does not end logs which sandboxes are busy, and stops waiting after a time limit.
func TestAWorkerStopsWaitingForWorkThatDoesNotEnd(t *testing.T) {
	var log bytes.Buffer
	w := &worker{log: slog.New(slog.NewTextHandler(&log, nil)),
		mailboxes: &mailboxes{byKey: map[protocol.SandboxKey]*sandbox.Sandbox{{Tenant: "default", ID: "stuck"}: nil}}}
	ended := make(chan error, 1)
	if err := w.awaitEnd(ended, 10*time.Millisecond); err != errStillBusy {
		t.Errorf("awaitEnd returned %v while the work continued, want errStillBusy", err)
	}
	if !strings.Contains(log.String(), "default/stuck") || !strings.Contains(log.String(),
		"TestAWorkerStopsWaitingForWorkThatDoesNotEnd") {
		t.Errorf("the log names neither the busy sandbox nor the goroutines: %q", log.String())
	}
	ended <- context.Canceled
	if err := w.awaitEnd(ended, time.Minute); err != context.Canceled {
		t.Errorf("awaitEnd returned %v after the work ended, want the work's error", err)
	}
}
