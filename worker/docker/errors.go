package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/boxfleet/boxfleet/protocol"
)

// Reasons of this package's errors, in addition to the reasons in package protocol.
const (
	// ReasonEngineError means that the engine failed: it answered with a 5xx status, or with a response that cannot be
	// read. Whether a requested change was made is unknown.
	ReasonEngineError = "engine_error"
	// ReasonSubnetOverlap means that the subnet overlaps another subnet that is in use on the engine's host.
	ReasonSubnetOverlap = "subnet_overlap"
	// ReasonPortTaken means that a port of the engine's host is in use.
	ReasonPortTaken = protocol.ReasonPortTaken
	// ReasonNoDiskQuota means that the storage driver cannot limit what a container writes.
	ReasonNoDiskQuota = "no_disk_quota"
)

// Sentinels for errors.Is.
var (
	// ErrEngineUnavailable matches the error of every call that the engine did not answer: the engine could not be
	// reached, or closed the connection, or the deadline passed. The state of the object is unknown.
	ErrEngineUnavailable = &protocol.Error{Code: protocol.Unavailable, Reason: protocol.ReasonEngineUnavailable}
	// ErrSubnetOverlap matches the error for a network whose subnet is in use. Another subnet may be free.
	ErrSubnetOverlap = &protocol.Error{Code: protocol.ResourceExhausted, Reason: ReasonSubnetOverlap}
	// ErrImageNotFound matches the error for an image that the engine or the registry does not have.
	ErrImageNotFound = &protocol.Error{Code: protocol.NotFound, Reason: protocol.ReasonImageNotFound}
)

// IsNotFound reports whether the engine said that the container, network or volume does not exist. It is false for a
// missing image and for an engine that did not answer.
func IsNotFound(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Code == protocol.NotFound && e.Reason == ""
}

// denials match the engine's errors for a missing object. A 404 alone is not enough: the engine also answers 404 for a
// missing network of an existing container, for a missing path in a container, and for an endpoint it does not serve.
var denials = map[kind]*regexp.Regexp{
	kindContainer: regexp.MustCompile(`(?i)no such container`),
	kindNetwork:   regexp.MustCompile(`(?i)no such network|network .* not found`),
	kindVolume:    regexp.MustCompile(`(?i)no such volume`),
	kindImage:     regexp.MustCompile(`(?i)no such image`),
}

// translate turns an error of the Docker client into a *protocol.Error. ctx is the context of the caller, without the
// deadline of the call.
func translate(ctx context.Context, c call, err error) error {
	if err == nil {
		return nil
	}
	var typed *protocol.Error
	if errors.As(err, &typed) {
		return err
	}
	message := strings.TrimPrefix(err.Error(), "Error response from daemon: ")
	fail := func(code protocol.Code, reason string) error {
		return protocol.Errorf(code, reason, "%s: %s", c.subject(), bounded(message))
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fail(protocol.Cancelled, "")
	case unanswered(err):
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			message = "the engine did not answer before the caller's deadline"
		case errors.Is(err, context.DeadlineExceeded):
			message = fmt.Sprintf("the engine did not answer within %s", c.limit)
		}
		return fail(protocol.Unavailable, protocol.ReasonEngineUnavailable)
	case noRoom.MatchString(message) && !notOfDisk.MatchString(message):
		return fail(protocol.ResourceExhausted, protocol.ReasonDiskFull)
	case cerrdefs.IsNotFound(err):
		return notFound(c, message, fail)
	case c.kind == kindNetwork && strings.Contains(strings.ToLower(message), "overlap"):
		return fail(protocol.ResourceExhausted, ReasonSubnetOverlap)
	case cerrdefs.IsConflict(err):
		if c.verb == "create" {
			return fail(protocol.AlreadyExists, "")
		}
		return fail(protocol.FailedPrecondition, "")
	case c.verb == "create" && strings.Contains(message, "storage-opt"):
		return fail(protocol.FailedPrecondition, ReasonNoDiskQuota)
	case c.verb == "start" && portRefused.MatchString(message):
		return fail(protocol.ResourceExhausted, ReasonPortTaken)
	case c.verb == "start" && strings.Contains(message, "protocol not supported"): // many kernels do not support SCTP
		return fail(protocol.FailedPrecondition, protocol.ReasonUnsupported)
	case c.verb == "start" && ambiguous.MatchString(message): // the caller removes one of the networks, and tries again
		return fail(protocol.Unavailable, ReasonEngineError)
	case c.verb == "start" && startRefused(err, message):
		return fail(protocol.FailedPrecondition, protocol.ReasonStartFailed)
	case c.verb == "copy to" && copyRefused.MatchString(message):
		return fail(protocol.FailedPrecondition, protocol.ReasonCopyFailed)
	case cerrdefs.IsPermissionDenied(err):
		return fail(protocol.FailedPrecondition, "")
	case cerrdefs.IsInvalidArgument(err):
		return fail(protocol.InvalidArgument, "")
	}
	return fail(protocol.Unavailable, ReasonEngineError)
}

// noRoom matches the engine's errors for a full disk and for a container's full quota.
var noRoom = regexp.MustCompile(`no space left on device|disk quota exceeded`)

// notOfDisk matches errors that say "no space left on device" about cgroups or file watches, and not about a disk.
var notOfDisk = regexp.MustCompile(`/sys/fs/cgroup|inotify`)

// maxMessage limits the length of an error text of the engine. Such a text may contain a path from a sandbox, and the
// path may have any length.
const maxMessage = 2 << 10

// bounded replaces the middle of a long message by an ellipsis.
func bounded(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage*3/4],
		"") + " … " + strings.ToValidUTF8(message[len(message)-maxMessage/4:], "")
}

// notFound translates an error with status 404.
func notFound(c call, message string, fail func(protocol.Code, string) error) error {
	switch {
	case denials[kindImage].MatchString(message):
		return fail(protocol.NotFound, protocol.ReasonImageNotFound)
	case denials[c.kind] != nil && denials[c.kind].MatchString(message):
		return fail(protocol.NotFound, "")
	case c.verb == "start" && denials[kindNetwork].MatchString(message):
		return fail(protocol.FailedPrecondition, protocol.ReasonStartFailed)
	case c.verb == "copy to" && strings.Contains(strings.ToLower(message), "could not find"):
		return fail(protocol.FailedPrecondition, protocol.ReasonCopyFailed)
	}
	return fail(protocol.Unavailable, ReasonEngineError)
}

// unanswered reports whether err means that no complete response arrived.
func unanswered(err error) bool {
	var netErr net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, errStalled) || client.IsErrConnectionFailed(err) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &netErr)
}

// portRefused matches the engine's errors for a port that is in use.
var portRefused = regexp.MustCompile(`address already in use|port is already allocated`)

// ambiguous matches the engine's error for a container whose network has a name that another network has, too.
var ambiguous = regexp.MustCompile(`network .* is ambiguous`)

// startRefused reports whether no retry of a start can succeed, for example because the container's command or the
// source of a mount is missing. Otherwise the engine itself failed. The engine may report both cases as "failed to
// create task".
func startRefused(err error, message string) bool {
	if cerrdefs.IsInvalidArgument(err) || strings.Contains(message, "OCI runtime") ||
		strings.Contains(message, "error while creating mount source path") {
		return true
	}
	return (strings.Contains(message, "failed to create shim") || strings.Contains(message, "failed to create task")) &&
		!cerrdefs.IsUnavailable(err) && !runtimeAway.MatchString(message)
}

// runtimeAway matches the engine's errors for a container runtime that does not answer, for example while it restarts.
var runtimeAway = regexp.MustCompile(`: unavailable\b|code = Unavailable|deadline exceeded|` +
	`code = DeadlineExceeded|transport is closing`)
