// Package hosterr translates errors of the worker's own machine, says which errors are temporary, and records why a
// facility of the host, such as its firewall, does not work.
//
//	os, unix ──► Wrap ──► *protocol.Error
//
// It imports protocol.
package hosterr

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// Wrap translates an error of the host's file system: a full disk becomes resource_exhausted, and any other error
// becomes internal. The parameters format and args describe the failed action. The message consists of this description
// and the text of err.
func Wrap(err error, format string, args ...any) *protocol.Error {
	code, reason := protocol.Internal, ""
	if DiskFull(err) {
		code, reason = protocol.ResourceExhausted, protocol.ReasonDiskFull
	}
	return protocol.Errorf(code, reason, "%s: %v", fmt.Sprintf(format, args...), err)
}

// DiskFull reports whether err says that a disk, or a quota on it, has no room left.
func DiskFull(err error) bool {
	var e *protocol.Error
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) ||
		errors.As(err, &e) && e.Reason == protocol.ReasonDiskFull
}

// Temporary reports whether the worker should retry after err: the cause may go away without a change of the sandbox's
// spec or of the host's configuration. nil is not temporary.
func Temporary(err error) bool {
	if err == nil {
		return false
	}
	e := protocol.AsError(err)
	switch e.Code {
	case protocol.Unavailable:
		switch e.Reason {
		case protocol.ReasonImagePullFailed, protocol.ReasonImagePullStalled, protocol.ReasonRegistryUnreachable:
			return false // the pull has its own retries
		}
		return true
	case protocol.DeadlineExceeded, protocol.Cancelled:
		return true
	}
	switch e.Reason {
	case protocol.ReasonLeaseLost, protocol.ReasonDiskFull:
		return true
	case protocol.ReasonNoNetwork, protocol.ReasonNoGPU: // another sandbox may free a subnet or a GPU
		return true
	}
	return false
}

// WithField returns err. If err has this reason, WithField sets the field of the returned error.
func WithField(err error, reason, field string) error {
	var e *protocol.Error
	if errors.As(err, &e) && e.Reason == reason {
		named := *e
		named.Field = field
		return &named
	}
	return err
}
