package sandbox

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// unknownFor is how long ExecInput waits for an exec that the client has seen in the log before the worker.
const unknownFor = time.Second

// ExecInput reports whether an exec that takes input has started, and the service in whose container it runs. Errors:
// not_found if the sandbox has no such active exec; failed_precondition with reason exec_already_terminal or no_stdin;
// the errors of Reach if the sandbox is not here.
func (s *Sandbox) ExecInput(ctx context.Context, id string) (service string, started bool, err error) {
	for until := time.Now().Add(unknownFor); ; {
		if err := reachableNow(ctx, s, ""); err != nil {
			return "", false, err
		}
		known := false
		s.journal.View(func(st *protocol.State, _ uint64) {
			x := st.Execs[id]
			if known = x != nil; known {
				service, started, err = x.Spec.Service, x.State == protocol.ExecStateRunning, refuseInput(x)
			}
		})
		if known {
			return service, started, err
		}
		if time.Now().After(until) || !backoff.Sleep(ctx, inputPeriod) {
			return "", false, protocol.Errorf(protocol.NotFound, "", "sandbox %s has no running exec %.80q", s.key.ID, id)
		}
	}
}

// inputPeriod is the pause between two checks whether the worker knows the exec.
const inputPeriod = 5 * time.Millisecond

// refuseInput returns why an exec takes no input, or nil.
func refuseInput(x *protocol.Exec) error {
	switch {
	case x.State.Terminal():
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal,
			"exec %s has ended, so it takes no more input", x.ID)
	case !x.Spec.OpenStdin:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNoStdin,
			"exec %s was started without a stdin that stays open (open_stdin)", x.ID)
	}
	return nil
}
