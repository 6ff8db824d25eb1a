package execs

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAnExecThatIsRefusedDuringAStopIsCancelled(t *testing.T) {
	stopping := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxStopping, "stopping")
	if r, err := refused("x", stopping); err != nil || !r.Cancelled || r.Failed {
		t.Errorf("refused because the sandbox is stopping: result %+v, error %v, want cancelled", r, err)
	}
	if _, err := refused("x", protocol.Errorf(protocol.Unavailable, "", "gone")); err == nil {
		t.Error("a temporary error ends the exec")
	}
	if r, err := refused("x", protocol.Errorf(protocol.NotFound, protocol.ReasonStartFailed,
		"no such file")); err != nil || !r.Failed {
		t.Errorf("refused because the command does not exist: result %+v, error %v, want failed", r, err)
	}
}
