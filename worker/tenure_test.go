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

// A worker whose work does not end logs which sandboxes are busy, and does not wait for ever.
func TestAWorkerDoesNotWaitForEverForItsWorkToEnd(t *testing.T) {
	var log bytes.Buffer
	w := &worker{log: slog.New(slog.NewTextHandler(&log, nil)),
		mailboxes: &mailboxes{byKey: map[protocol.SandboxKey]*sandbox.Sandbox{{Tenant: "default", ID: "stuck"}: nil}}}
	ended := make(chan error, 1)
	if err := w.awaitEnd(ended, 10*time.Millisecond); err != errStillBusy {
		t.Errorf("it ends with %v", err)
	}
	if !strings.Contains(log.String(), "default/stuck") || !strings.Contains(log.String(),
		"TestAWorkerDoesNotWaitForEver") {
		t.Errorf("it logs %q, without the sandbox or its goroutines", log.String())
	}
	ended <- context.Canceled
	if err := w.awaitEnd(ended, time.Minute); err != context.Canceled {
		t.Errorf("after the work it ends with %v", err)
	}
}
