package stream

import (
	"net"
	"os"

	"github.com/boxfleet/boxfleet/protocol"
)

// endError is a *protocol.Error that is also one of the errors that programs expect of a [net.Conn].
type endError struct {
	is   *protocol.Error
	like error
}

func (e *endError) Error() string { return e.is.Error() }

func (e *endError) Unwrap() []error { return []error{e.is, e.like} }

// Timeout makes the error of a deadline a [net.Error].
func (e *endError) Timeout() bool { return e.like == os.ErrDeadlineExceeded }

// Temporary is part of [net.Error].
func (e *endError) Temporary() bool { return e.Timeout() }

var (
	errDeadline = &endError{
		protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonTimeout, "the deadline of the stream has passed"),
		os.ErrDeadlineExceeded,
	}
	errClosed = &endError{
		protocol.Errorf(protocol.Cancelled, protocol.ReasonStreamClosed, "this end of the stream is closed"), net.ErrClosed,
	}
	errWriteClosed = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStreamClosed,
		"this end of the stream has already ended its output")
	errReadClosed = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStreamClosed,
		"this end of the stream has already ended its input")
	errPeerClosed = protocol.Errorf(protocol.Cancelled, protocol.ReasonStreamClosed,
		"the other end closed the stream and reads no more")
	errReset = protocol.Errorf(protocol.Cancelled, protocol.ReasonStreamClosed, "the stream was ended early")
)
