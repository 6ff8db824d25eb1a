package execs

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/output"
)

// start tells the supervisor to start the exec. If this supervisor runs the exec, or ran it to its end, start returns
// nil, and await returns the result. If the exec ended in another way, start returns the result: for example, the
// supervisor refused the exec, or the container ended.
func (r *execution) start(ctx context.Context, x *protocol.Exec, number uint64, a *attach.Attachment,
	p *output.Exec) (*control.Result, error) {
	if err := r.cfg.Fence(); err != nil {
		return nil, err
	}
	starting, cancel := a.During(ctx)
	defer cancel()
	status, err := r.startWithSecrets(starting, x, a, control.Start{
		ID: r.id, Boot: a.Boot, Number: number,
		Argv: x.Spec.Command, Env: x.Spec.Env, Cwd: x.Spec.Cwd, User: x.Spec.User, Stdin: x.Spec.Stdin,
		OpenStdin: x.Spec.OpenStdin,
		Timeout:   x.Spec.Timeout.Std(), Grace: x.Spec.Grace.Std(),
		OutputLimit: int64(x.Spec.OutputLimit), InlineLimit: protocol.MaxInlineOutput,
	})
	r.cfg.Probe("after-exec-start")
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case starting.Err() != nil:
		result, err := r.sealedResult(a, containerEnded)
		return &result, err
	case protocol.CodeOf(err) == protocol.FailedPrecondition && protocol.AsError(err).Reason == protocol.ReasonInterrupted:
		result, err := r.sealedResult(a, protocol.AsError(err).Message)
		return &result, err
	case err != nil && protocol.AsError(err).Reason == protocol.ReasonLeaseLost:
		return nil, err // the exec was not started; the next holder of the host's lock starts it
	case err != nil:
		return refused(r.id, protocol.AsError(err))
	}
	if status.Age > 0 { // the supervisor knows the age of the process more precisely than the log does
		p.SetAge(status.Age)
	}
	if status.Result != nil {
		r.e.Ended(*status.Result)
	}
	r.grow(status.StdoutBytes, status.StderrBytes)
	return nil, nil
}

// startWithSecrets sends the Start of an exec. If an earlier worker may have started the exec, startWithSecrets asks
// for the values of secrets only if the supervisor does not know the exec: a secret may have been removed since the
// start.
func (r *execution) startWithSecrets(ctx context.Context, x *protocol.Exec, a *attach.Attachment,
	start control.Start) (control.ExecStatus, error) {
	start.Secrets = r.secrets
	if get := r.getter(x); start.Secrets == nil && get != nil {
		start.OnlyKnown = true
		status, err := a.Link.Start(ctx, start)
		if protocol.CodeOf(err) != protocol.NotFound {
			return status, err
		}
		start.OnlyKnown = false
		if start.Secrets, err = get(ctx); err != nil {
			return status, err
		}
	}
	status, err := a.Link.Start(ctx, start)
	if err == nil { // otherwise the command may still wait to be sent
		control.Wipe(start.Secrets)
	}
	return status, err
}

// refused returns the result of an exec that the supervisor refused to start, or an error if a retry may succeed.
func refused(id string, why *protocol.Error) (*control.Result, error) {
	switch {
	case why.Code == protocol.Unavailable:
		return nil, why
	case why.Reason == protocol.ReasonSandboxStopping: // the supervisor is ending every exec
		return &control.Result{ID: id, Cancelled: true}, nil
	}
	return &control.Result{ID: id, Failed: true, Error: why}, nil
}
