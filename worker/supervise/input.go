package supervise

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// errTooOldForInput is the error of an exec with an open stdin in a container that an older worker started.
var errTooOldForInput error = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
	"the container was started by an older worker, which could not pass input to running execs; stop and resume the "+
		"sandbox, or create it again")

// Input sends a piece of the stdin of an exec that was started with [control.Start.OpenStdin], or asks for its state.
// It returns when the supervisor answers, which may take until the process reads: see [control.Input]. If the
// connection ends first, the piece is sent again, and the supervisor skips the bytes that it has taken before.
//
// Errors: those of [control.Input]; failed_precondition with reason unsupported if the supervisor is too old;
// unavailable; the error of [Config.Lease].
func (l *Link) Input(ctx context.Context, in control.Input) (control.InputStatus, error) {
	reply, err := l.ask(ctx, control.Command{Input: &in})
	if err != nil || reply.Input == nil {
		return control.InputStatus{}, err
	}
	return *reply.Input, nil
}
