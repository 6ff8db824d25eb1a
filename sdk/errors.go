package sdk

import (
	"context"
	"errors"

	"github.com/boxfleet/boxfleet/protocol"
)

// failure is a typed error with the error of another kind that it stands for.
type failure struct {
	typed *protocol.Error
	cause error
}

func (f *failure) Error() string   { return f.typed.Error() }
func (f *failure) Unwrap() []error { return []error{f.typed, f.cause} }

// failed gives err the form in which it leaves the package: a *protocol.Error, and the error of
// ctx besides where ctx is what ended the call.
func failed(ctx context.Context, err error, doing string) error {
	if whole := (*failure)(nil); err == nil || errors.As(err, &whole) {
		return err
	}
	if ended := ctx.Err(); ended != nil {
		switch protocol.CodeOf(err) {
		case protocol.DeadlineExceeded, protocol.Cancelled, protocol.Internal, protocol.Unavailable:
			return ctxEnded(ended, doing)
		}
	}
	var typed *protocol.Error
	if errors.As(err, &typed) {
		return err
	}
	return &failure{protocol.Errorf(protocol.Internal, "", "%s: %v", doing, err), err}
}

// ctxEnded is the error for a context that ended.
func ctxEnded(ended error, doing string) error {
	code := protocol.Cancelled
	if errors.Is(ended, context.DeadlineExceeded) {
		code = protocol.DeadlineExceeded
	}
	return &failure{protocol.Errorf(code, "", "%s: %v", doing, ended), ended}
}

// isTransient says whether a call may succeed when it is tried again.
func isTransient(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.Unavailable || code == protocol.DeadlineExceeded
}

// isOver says whether a call failed because its time was over or its caller ended it.
func isOver(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.DeadlineExceeded || code == protocol.Cancelled
}

// isFinal says that a call which may succeed later is not tried again now: there is no majority of the
// NATS servers, and the caller is told so instead of kept waiting.
func isFinal(err error) bool {
	return err != nil && protocol.AsError(err).Reason == protocol.ReasonNoQuorum
}
