package attach_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/attach/attachtest"
)

// A container may end before its supervisor connects.
func TestGreetDoesNotWaitForASupervisorThatHasEnded(t *testing.T) {
	a, _ := attachtest.Listen(t)
	gone := exec.Command("sleep", "0.3")
	began := time.Now()
	if err := gone.Start(); err != nil {
		t.Fatal(err)
	}
	go gone.Wait()
	err := a.Greet(t.Context(), gone.Process.Pid)
	if protocol.AsError(err).Reason != protocol.ReasonSupervisorUnhealthy ||
		!strings.Contains(err.Error(), "ended before") {
		t.Errorf("Greet returned %v, want that the container ended before its supervisor connected", err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 10*time.Second {
		t.Errorf("Greet returned after %s, want soon after the process ended at 300ms", took)
	}
}

// A container that ends during a health test must not block the goroutine that inspects the container.
func TestACommandsContextEndsWithTheConnection(t *testing.T) {
	a, connect := attachtest.Listen(t)
	conn := connect()
	ctx, cancel := a.WhileConnected(t.Context())
	defer cancel()
	select {
	case <-ctx.Done():
		t.Fatal("the context ended while the supervisor was connected")
	case <-time.After(1500 * time.Millisecond):
	}
	conn.Close()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the context did not end with the connection")
	}
}

func TestNoCommandStartsWithoutTheHostsLock(t *testing.T) {
	lost := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost, "the host's lock is not held")
	dir := t.TempDir()
	a, err := attach.Listen(attach.Config{ControlDir: dir, RunDir: dir, Welcome: control.Welcome{Key: make([]byte, 32)},
		Fence: func() error { return lost }, Events: attachtest.NoEvents{}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Run.Close()
	defer a.Close()
	if _, _, err := a.Command(t.Context(), control.Start{ID: "hook"}); err != lost {
		t.Errorf("without the host's lock, Command returned %v, want %v", err, lost)
	}
}
