package sdk

import (
	"context"
	"errors"

	"github.com/boxfleet/boxfleet/protocol"
)

// typedError contains an *Error and the error of another type that caused it. errors.Is and errors.As find both errors.
type typedError struct {
	typed *Error
	cause error
}

func (f *typedError) Error() string   { return f.typed.Error() }
func (f *typedError) Unwrap() []error { return []error{f.typed, f.cause} }

// failed turns err into an error for callers of this package: it always contains an *Error. If ctx ended the call, it
// also contains the error of ctx.
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

// ctxEnded returns the error of a call whose context ended.
func ctxEnded(ended error, doing string) error {
	code := protocol.Cancelled
	if errors.Is(ended, context.DeadlineExceeded) {
		code = protocol.DeadlineExceeded
	}
	return &typedError{protocol.Errorf(code, "", "%s: %v", doing, ended), ended}
}

// isTransient reports whether the same call may succeed when it is repeated.
func isTransient(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.Unavailable || code == protocol.DeadlineExceeded ||
		err != nil && protocol.AsError(err).Reason == protocol.ReasonTooManyReads
}

// isQueueFull reports whether an error says that a request was not accepted because the queue is full.
func isQueueFull(why *Error) bool { return why != nil && why.Reason == protocol.ReasonQueueFull }

// isContextEnd reports whether a call failed because its time ran out or its caller cancelled it.
func isContextEnd(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.DeadlineExceeded || code == protocol.Cancelled
}

// isFinal reports whether a transient error says that too few NATS servers are running. A call returns such an error at
// once, because the caller should learn the cause instead of waiting.
func isFinal(err error) bool {
	return err != nil && protocol.AsError(err).Reason == protocol.ReasonNoQuorum
}
