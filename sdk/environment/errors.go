package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Kind says what kind of error an [Error] is. The set of kinds is fixed.
type Kind string

// The kinds of errors.
const (
	Invalid      Kind = "invalid"       // an argument is invalid; Field names it
	NotFound     Kind = "not_found"     // the path does not exist
	IsDirectory  Kind = "is_directory"  // the path is a directory, and the call needs a file
	NotDirectory Kind = "not_directory" // the path, or a part of the path, is not a directory
	NotRegular   Kind = "not_regular"   // the path is a device, a FIFO or a socket
	Permission   Kind = "permission"    // the user may not do this
	TooLarge     Kind = "too_large"     // the file has more bytes than the call can return
	NoLanguage   Kind = "no_language"   // the environment has no interpreter for the language
	Unsupported  Kind = "unsupported"   // the environment cannot apply the option
	Timeout      Kind = "timeout"       // the command ran longer than its timeout
	Cancelled    Kind = "cancelled"     // the context ended
	Unavailable  Kind = "unavailable"   // the environment cannot be reached, or has ended
	Garbled      Kind = "garbled"       // the environment's answer is not valid
	Failed       Kind = "failed"        // something else; the message says what
)

// Error is the type of all errors of environments. errors.As finds it; errors.Is compares its kind with the sentinels
// below. An error of kind NotFound also matches fs.ErrNotExist, and one of kind Permission fs.ErrPermission.
type Error struct {
	Kind    Kind
	Field   string // name of the invalid argument or option, such as "env.1X" or "path"
	Message string
	Err     error // the error of the backend, or nil
}

// Sentinels for errors.Is, one for each [Kind].
var (
	ErrInvalid      = &Error{Kind: Invalid}
	ErrNotFound     = &Error{Kind: NotFound}
	ErrIsDirectory  = &Error{Kind: IsDirectory}
	ErrNotDirectory = &Error{Kind: NotDirectory}
	ErrNotRegular   = &Error{Kind: NotRegular}
	ErrPermission   = &Error{Kind: Permission}
	ErrTooLarge     = &Error{Kind: TooLarge}
	ErrNoLanguage   = &Error{Kind: NoLanguage}
	ErrUnsupported  = &Error{Kind: Unsupported}
	ErrTimeout      = &Error{Kind: Timeout}
	ErrCancelled    = &Error{Kind: Cancelled}
	ErrUnavailable  = &Error{Kind: Unavailable}
	ErrGarbled      = &Error{Kind: Garbled}
	ErrFailed       = &Error{Kind: Failed}
)

// Errorf returns an error of a kind.
func Errorf(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns an error of a kind whose message and cause are err, which may be nil.
func Wrap(kind Kind, err error, doing string) *Error {
	e := &Error{Kind: kind, Message: doing, Err: err}
	if err != nil {
		e.Message += ": " + err.Error()
	}
	return e
}

// Error returns the kind, the field and the message as one text.
func (e *Error) Error() string {
	text := string(e.Kind)
	if e.Field != "" {
		text += ": " + e.Field
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Unwrap returns the error of the backend.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target has the same kind.
func (e *Error) Is(target error) bool {
	if t, ok := target.(*Error); ok {
		return e.Kind == t.Kind
	}
	return e.Kind == NotFound && target == fs.ErrNotExist || e.Kind == Permission && target == fs.ErrPermission
}

// TimeoutError says that a command ran longer than its timeout and was ended. It matches [ErrTimeout].
type TimeoutError struct {
	After time.Duration // the timeout
	// Result holds the command's output, if [Execute] or [ExecuteCode] returned the error. Its exit code is
	// [UnknownExitCode].
	Result *Result
}

// Error says how long the command ran.
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("timeout: the command ran longer than its timeout of %v and was ended", e.After)
}

// Unwrap returns an *[Error] of kind Timeout.
func (e *TimeoutError) Unwrap() error { return &Error{Kind: Timeout, Message: e.Error()} }

// KindOf returns the kind of an error, "" for nil, Cancelled for the end of a context, and Failed for errors of other
// packages.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Cancelled
	}
	return Failed
}
