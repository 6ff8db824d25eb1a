package main

import (
	"errors"
	"fmt"

	"github.com/boxfleet/boxfleet/protocol"
)

// Exit codes. If the command ran, `exec` and `run` return the command's own exit code.
const (
	exitFailure   = 1   // the command failed
	exitUsage     = 2   // the command line or configuration is wrong
	exitWarnings  = 3   // the worst finding of doctor is a warning
	exitErrors    = 4   // the worst finding of doctor is an error
	exitTimedOut  = 124 // the exec exceeded its timeout and has no exit code
	exitNotRun    = 125 // the exec could not be run
	exitCancelled = 130 // the exec was cancelled and has no exit code
	// 128+n: signal n ended the client. 141 (SIGPIPE): the reader of the client's output is gone.
)

// exitCode is an error that ends the program with this exit code. cause is the error to print, or nil to print nothing.
type exitCode struct {
	code  int
	cause error
}

func (e exitCode) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.cause.Error()
}

func (e exitCode) Unwrap() error { return e.cause }

// usage returns an error for a wrong command line or configuration.
func usage(format string, args ...any) error {
	return exitCode{exitUsage, protocol.Errorf(protocol.InvalidArgument, "", format, args...)}
}

func codeOf(err error) int {
	var code exitCode
	switch {
	case errors.As(err, &code):
		return code.code
	case protocol.CodeOf(err) == protocol.InvalidArgument:
		return exitUsage
	}
	return exitFailure
}
