package files

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// failures translates the kernel's errors.
var failures = map[unix.Errno]struct {
	code   protocol.Code
	reason string
	says   string
}{
	unix.ENOENT: {protocol.NotFound, protocol.ReasonPathNotFound, "does not exist"},
	unix.EEXIST: {protocol.AlreadyExists, protocol.ReasonPathExists, "exists already"},
	unix.EACCES: {protocol.PermissionDenied, protocol.ReasonPathDenied, "the user has no permission"},
	unix.EPERM:  {protocol.PermissionDenied, protocol.ReasonPathDenied, "the user may not do this"},
	unix.EISDIR: {protocol.FailedPrecondition, protocol.ReasonIsDirectory, "is a directory"},
	unix.ENOTDIR: {protocol.FailedPrecondition, protocol.ReasonNotDirectory,
		"is not a directory, or has no directory above it"},
	unix.ENOTEMPTY:    {protocol.FailedPrecondition, protocol.ReasonNotEmpty, "the directory is not empty"},
	unix.ELOOP:        {protocol.FailedPrecondition, protocol.ReasonLinkLoop, "has too many symbolic links"},
	unix.EROFS:        {protocol.FailedPrecondition, protocol.ReasonReadOnly, "the file system is read-only"},
	unix.EBUSY:        {protocol.FailedPrecondition, protocol.ReasonFileBusy, "is a mount point, or is in use"},
	unix.ETXTBSY:      {protocol.FailedPrecondition, protocol.ReasonFileBusy, "is a program that runs"},
	unix.EWOULDBLOCK:  {protocol.FailedPrecondition, protocol.ReasonFileBusy, "another process has a lease on the file"},
	unix.ENXIO:        {protocol.FailedPrecondition, protocol.ReasonNotRegular, "is not a regular file"},
	unix.ENODEV:       {protocol.FailedPrecondition, protocol.ReasonNotRegular, "is not a regular file"},
	unix.ENOSPC:       {protocol.ResourceExhausted, protocol.ReasonDiskFull, "the disk is full"},
	unix.EDQUOT:       {protocol.ResourceExhausted, protocol.ReasonDiskFull, "the user's quota of the disk is used up"},
	unix.EFBIG:        {protocol.ResourceExhausted, protocol.ReasonTooLarge, "the file would be too large"},
	unix.EMFILE:       {protocol.ResourceExhausted, protocol.ReasonTooLarge, "too many files are open"},
	unix.ENFILE:       {protocol.ResourceExhausted, protocol.ReasonTooLarge, "too many files are open"},
	unix.EMLINK:       {protocol.ResourceExhausted, protocol.ReasonTooLarge, "has too many names"},
	unix.ENOMEM:       {protocol.ResourceExhausted, protocol.ReasonTooLarge, "the sandbox has no memory left"},
	unix.ENAMETOOLONG: {protocol.InvalidArgument, "", "the path or a name in it is too long"},
	unix.EINVAL:       {protocol.InvalidArgument, "", "the file system refuses this name or operation"},
	unix.EXDEV:        {protocol.FailedPrecondition, protocol.ReasonInvalidState, "leads to another file system"},
	unix.EOPNOTSUPP:   {protocol.FailedPrecondition, protocol.ReasonUnsupported, "the file system does not support this"},
}

// failure translates an error that concerns a path.
func failure(path string, err error) error {
	if known := (*protocol.Error)(nil); err == nil || errors.As(err, &known) {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonInterrupted, "the operation was cancelled")
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return protocol.Errorf(protocol.Internal, "", "%.200q: %v", path, err)
	}
	if f, ok := failures[errno]; ok {
		return protocol.Errorf(f.code, f.reason, "%.200q: %s", path, f.says)
	}
	return protocol.Errorf(protocol.Unavailable, "", "%.200q: %v", path, errno)
}

// notRegular is the error for a file of a type that an operation does not take.
func notRegular(path string, kind protocol.FileType) error {
	if kind == protocol.FileDirectory {
		return failure(path, unix.EISDIR)
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNotRegular,
		"%.200q is a %s, not a regular file", path, kind)
}

func tooLarge(format string, args ...any) error {
	return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge, format, args...)
}
