package sdk

import (
	"context"
	"errors"

	"github.com/boxfleet/boxfleet/protocol"
)

// typedError joins a typed error with the error of another kind that caused it.
type typedError struct {
	typed *Error
	cause error
}

func (f *typedError) Error() string   { return f.typed.Error() }
func (f *typedError) Unwrap() []error { return []error{f.typed, f.cause} }

// failed turns err into what callers of the package get: it contains an *Error, and also the error of ctx if ctx ended
// the call.
func failed(ctx context.Context, err error, doing string) error {
	if done := (*typedError)(nil); err == nil || errors.As(err, &done) {
		return err
	}
	if ended := ctx.Err(); ended != nil {
		switch protocol.CodeOf(err) {
		case protocol.DeadlineExceeded, protocol.Cancelled, protocol.Internal, protocol.Unavailable:
			return ctxEnded(ended, doing)
		}
	}
	var typed *Error
	if errors.As(err, &typed) {
		return err
	}
	return &typedError{protocol.Errorf(protocol.Internal, "", "%s: %v", doing, err), err}
}

// ctxEnded is the error of a call whose context ended.
func ctxEnded(ended error, doing string) error {
	code := protocol.Cancelled
	if errors.Is(ended, context.DeadlineExceeded) {
		code = protocol.DeadlineExceeded
	}
	return &typedError{protocol.Errorf(code, "", "%s: %v", doing, ended), ended}
}

// isTransient says whether a repeated call may succeed.
func isTransient(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.Unavailable || code == protocol.DeadlineExceeded
}

// isContextEnd says whether a call failed because its time ran out or its caller cancelled it.
func isContextEnd(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.DeadlineExceeded || code == protocol.Cancelled
}

// isFinal says whether a transient error is returned at once instead of tried again: too few NATS servers are up, and
// the caller should know that rather than wait.
func isFinal(err error) bool {
	return err != nil && protocol.AsError(err).Reason == protocol.ReasonNoQuorum
}
