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

// Reasons of this adapter, beside those of protocol.
const (
	// ReasonEngineError is an answer of the engine that says that it failed: a 5xx, or one that
	// cannot be read. Whether the change was made is not known.
	ReasonEngineError = "engine_error"
	// ReasonSubnetOverlap is a subnet that another network on the engine's host uses.
	ReasonSubnetOverlap = "subnet_overlap"
	// ReasonPortTaken is a port of the engine's host that somebody else has.
	ReasonPortTaken = protocol.ReasonPortTaken
	// ReasonNoDiskQuota is a storage driver that cannot bound what a container writes.
	ReasonNoDiskQuota = "no_disk_quota"
)

// Sentinels for errors.Is.
var (
	// ErrEngineUnavailable matches every call that the engine did not answer: it is not there, it
	// hung up, or the deadline passed. Nothing is known about the object.
	ErrEngineUnavailable = &protocol.Error{Code: protocol.Unavailable, Reason: protocol.ReasonEngineUnavailable}
	// ErrSubnetOverlap matches a network whose subnet is taken; another one may be free.
	ErrSubnetOverlap = &protocol.Error{Code: protocol.ResourceExhausted, Reason: ReasonSubnetOverlap}
	// ErrImageNotFound matches an image that the engine does not have, or that no registry has.
	ErrImageNotFound = &protocol.Error{Code: protocol.NotFound, Reason: protocol.ReasonImageNotFound}
)

// IsNotFound says whether the engine denied that the container, network or volume exists. A missing
// image is not that, and neither is an engine that did not answer.
func IsNotFound(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Code == protocol.NotFound && e.Reason == ""
}

// denials are the engine's own words for a missing object. A 404 alone does not mean it: the engine
// answers 404 as well for a missing network of an existing container, a missing path in it, and a
// page that it does not serve.
var denials = map[kind]*regexp.Regexp{
	kindContainer: regexp.MustCompile(`(?i)no such container`),
	kindNetwork:   regexp.MustCompile(`(?i)no such network|network .* not found`),
	kindVolume:    regexp.MustCompile(`(?i)no such volume`),
	kindImage:     regexp.MustCompile(`(?i)no such image`),
}

// translate turns an error of the Docker client into a *protocol.Error. ctx is the caller's.
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
	case c.verb == "start" && strings.Contains(message, "protocol not supported"): // of a port: SCTP, on most kernels
		return fail(protocol.FailedPrecondition, protocol.ReasonUnsupported)
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

// noRoom is what the engine says where a disk, or what a container may use of it, is full.
var noRoom = regexp.MustCompile(`no space left on device|disk quota exceeded`)

// notOfDisk is where the kernel says the same of something else: its cgroups, or its watches on files.
var notOfDisk = regexp.MustCompile(`/sys/fs/cgroup|inotify`)

// maxMessage bounds what an engine may say in an error. It names paths that a sandbox made as long as it liked.
const maxMessage = 2 << 10

// bounded leaves out the middle of a long message.
func bounded(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage*3/4], "") + " … " + strings.ToValidUTF8(message[len(message)-maxMessage/4:], "")
}

// notFound reads a 404.
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

// unanswered says whether err means that no whole answer came.
func unanswered(err error) bool {
	var netErr net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, errStalled) || client.IsErrConnectionFailed(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &netErr)
}

// portRefused is what the engine says of a port that it cannot have.
var portRefused = regexp.MustCompile(`address already in use|port is already allocated`)

// startRefused tells a container that cannot be started as it is (its command is missing, a mount's
// source is gone) from an engine that failed. It says of both that it "failed to create task".
func startRefused(err error, message string) bool {
	if cerrdefs.IsInvalidArgument(err) || strings.Contains(message, "OCI runtime") || strings.Contains(message, "error while creating mount source path") {
		return true
	}
	return (strings.Contains(message, "failed to create shim") || strings.Contains(message, "failed to create task")) &&
		!cerrdefs.IsUnavailable(err) && !runtimeAway.MatchString(message)
}

// runtimeAway is what the engine says while what runs its containers restarts.
var runtimeAway = regexp.MustCompile(`: unavailable\b|code = Unavailable|deadline exceeded|code = DeadlineExceeded|transport is closing`)
