package worker

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// hostError is what the host's own file system says, for the one who asked for something: that there is no
// room is resource_exhausted and not a defect. format and args say what was tried; err follows.
func hostError(err error, format string, args ...any) *protocol.Error {
	code, reason := protocol.Internal, ""
	if diskFull(err) {
		code, reason = protocol.ResourceExhausted, protocol.ReasonDiskFull
	}
	return protocol.Errorf(code, reason, "%s: %v", fmt.Sprintf(format, args...), err)
}

// diskFull says whether an error is that a disk, or somebody's part of it, has no room left.
func diskFull(err error) bool {
	var e *protocol.Error
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.As(err, &e) && e.Reason == protocol.ReasonDiskFull
}
