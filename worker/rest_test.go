package worker

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A worker that cannot end what it has in hand says what that is, and does not wait for ever.
func TestAWorkerDoesNotWaitForEverToComeToRest(t *testing.T) {
	var log bytes.Buffer
	w := &worker{log: slog.New(slog.NewTextHandler(&log, nil)), sandboxes: map[key]*sandbox{{Tenant: "default", ID: "stuck"}: nil}}
	atRest := make(chan error, 1)
	if err := w.awaitRest(atRest, 10*time.Millisecond); err != errNotAtRest {
		t.Errorf("it ends with %v", err)
	}
	if !strings.Contains(log.String(), "default/stuck") || !strings.Contains(log.String(), "TestAWorkerDoesNotWaitForEver") {
		t.Errorf("it says %q, without the sandbox or its goroutines", log.String())
	}
	atRest <- context.Canceled
	if err := w.awaitRest(atRest, time.Minute); err != context.Canceled {
		t.Errorf("at rest it ends with %v", err)
	}
}
