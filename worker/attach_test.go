package worker

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// A container that ends before its supervisor connects, with its engine say, is not waited for.
func TestASupervisorThatHasEndedIsNotWaitedFor(t *testing.T) {
	a, _ := linked(t, &sandbox{})
	gone := exec.Command("sleep", "0.3")
	began := time.Now()
	if err := gone.Start(); err != nil {
		t.Fatal(err)
	}
	go gone.Wait()
	err := a.greet(t.Context(), gone.Process.Pid)
	if protocol.AsError(err).Reason != protocol.ReasonSupervisorUnhealthy || !strings.Contains(err.Error(), "ended before") {
		t.Errorf("it fails with %v", err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > helloWithin/2 {
		t.Errorf("it was waited for %s", took)
	}
}
