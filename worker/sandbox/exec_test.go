package sandbox

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAnExecThatComesAfterTheStopIsCancelled(t *testing.T) {
	stopping := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxStopping, "stopping")
	if r, err := refused("x", stopping); err != nil || !r.Cancelled || r.Failed {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := refused("x", protocol.Errorf(protocol.Unavailable, "", "gone")); err == nil {
		t.Error("a temporary error ends the exec")
	}
	if r, err := refused("x", protocol.Errorf(protocol.NotFound, protocol.ReasonStartFailed,
		"no such file")); err != nil || !r.Failed {
		t.Errorf("%+v, %v", r, err)
	}
}
