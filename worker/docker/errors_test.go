package docker

import (
	"errors"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/boxfleet/boxfleet/protocol"
)

// TestAStartThatFailsIsToldFromOneThatIsRefused has what engines say of a start, word by word.
func TestAStartThatFailsIsToldFromOneThatIsRefused(t *testing.T) {
	for message, reason := range map[string]string{
		`failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: "nothing": executable file not found in $PATH: unknown`: protocol.ReasonStartFailed,
		`failed to create shim task: OCI runtime create failed: context deadline exceeded: unknown`:                                                                                                                       protocol.ReasonStartFailed,
		`failed to create task for container: failed to start shim: exec: "containerd-shim-none-v1": executable file not found in $PATH: not found`:                                                                       protocol.ReasonStartFailed,
		`error while creating mount source path '/x': mkdir /x: read-only file system`:                                                                                                                                    protocol.ReasonStartFailed,
		`failed to create task for container: connection error: desc = "transport: error while dialing: dial unix /run/containerd/containerd.sock": unavailable`:                                                          ReasonEngineError,
		`failed to create task for container: rpc error: code = Unavailable desc = error reading from server: EOF`:                                                                                                        ReasonEngineError,
		`failed to create task for container: transport is closing: unavailable`:                                                                                                                                          ReasonEngineError,
		`failed to create task for container: failed to start shim: start failed: context deadline exceeded`:                                                                                                              ReasonEngineError,
		`failed to create shim: context deadline exceeded`:                                                                                                                                                                ReasonEngineError,
	} {
		err := translate(t.Context(), call{verb: "start", kind: kindContainer, name: "x"}, errors.New("Error response from daemon: "+message))
		if e := protocol.AsError(err); e.Reason != reason {
			t.Errorf("%s: got %v, want %s", message, err, reason)
		}
	}
	err := translate(t.Context(), call{verb: "start", kind: kindContainer, name: "x"}, cerrdefs.ErrUnavailable.WithMessage("failed to create task for container: it restarts"))
	if e := protocol.AsError(err); e.Reason != ReasonEngineError {
		t.Errorf("what the engine calls unavailable: got %v", err)
	}
}
