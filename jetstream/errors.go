package jetstream

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// ErrConflict says that a compare-and-set failed because another process wrote first. A [Journal] never returns
// ErrConflict: it reads what the other process wrote and decides again.
var ErrConflict = &protocol.Error{Code: protocol.FailedPrecondition, Reason: "write_conflict",
	Message: "another process wrote first"}

// statusUnavailable is the status of an answer of JetStream if no server can carry out the request now.
const statusUnavailable = 503

// Error codes of the NATS server that the NATS client does not name.
const (
	codeStreamNotCreated    jetstream.ErrorCode = 10049
	codeStreamStoreFailed   jetstream.ErrorCode = 10077 // a stream that discards new messages reached its limit
	codeInsufficientStorage jetstream.ErrorCode = 10047
	codeInsufficientStore   jetstream.ErrorCode = 10023 // the store of the whole server reached its limit
	codeAccountResources    jetstream.ErrorCode = 10002 // the account reached its limit
	codeNoSuitablePeers     jetstream.ErrorCode = 10005 // too few servers; temporary while the cluster is starting
	codeDuplicateInProcess  jetstream.ErrorCode = 10158 // the first copy of a repeated message still waits for a majority
	codeTooManyRequests     jetstream.ErrorCode = 10167 // too many messages wait to be stored in a stream
)

// translate turns an error of the NATS client into a *protocol.Error. The server reports a failed compare-and-set with
// one of two codes. The code depends on whether the server has already applied the write that was first.
func translate(err error, doing string) error {
	if err == nil {
		return nil
	}
	var typed *protocol.Error
	if errors.As(err, &typed) {
		return err
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return translateAPI(err, api, doing)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return protocol.Errorf(protocol.Cancelled, "", "%s: %v", doing, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return protocol.Errorf(protocol.InvalidArgument, protocol.ReasonTooLarge, "%s: %v", doing, err)
	case isRefusal(err), errors.Is(err, nats.ErrPermissionViolation):
		return protocol.Errorf(protocol.PermissionDenied, "", "%s: %v", doing, err)
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
		return notProvisioned(doing)
	case errors.Is(err, nats.ErrNoResponders):
		return protocol.Errorf(protocol.Unavailable, "", "%s: no NATS server with JetStream answers", doing)
	case errors.Is(err, jetstream.ErrKeyNotFound),
		errors.Is(err, jetstream.ErrObjectNotFound),
		errors.Is(err, jetstream.ErrMsgNotFound):
		return protocol.Errorf(protocol.NotFound, "", "%s: %v", doing, err)
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		return protocol.Errorf(protocol.Unavailable, "", "%s: no connection to NATS", doing)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return protocol.Errorf(protocol.DeadlineExceeded, "", "%s: no answer in time", doing)
	}
	return protocol.Errorf(protocol.Unavailable, "", "%s: %v", doing, err)
}

// translateAPI translates err, which wraps the answer api of JetStream.
func translateAPI(err error, api *jetstream.APIError, doing string) error {
	switch api.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return ErrConflict
	case codeStreamStoreFailed, codeInsufficientStorage, codeInsufficientStore:
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonQueueFull, "%s: %s", doing, api.Description)
	case codeStreamNotCreated:
		// A server that is still setting up an account can remove the account's new directory, which it made to test its
		// disk, while it makes a stream in it.
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonServerSettings,
			"%s: the NATS server could not create the stream: %s; if this persists, its log has the cause",
			doing, api.Description)
	case jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return protocol.Errorf(protocol.InvalidArgument, protocol.ReasonTooLarge, "%s: %s", doing, api.Description)
	case jetstream.JSErrCodeStreamNotFound:
		return notProvisioned(doing)
	case jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		// A server of a cluster also returns this error while it sets the account up. It does so when it first hears of
		// the account, and after each start.
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonServerSettings, "NATS: %s", whyNoJetStream(err))
	case jetstream.JSErrCodeMessageNotFound, jetstream.JSErrCodeConsumerNotFound:
		return protocol.Errorf(protocol.NotFound, "", "%s: %s", doing, api.Description)
	case codeNoSuitablePeers, codeDuplicateInProcess, codeTooManyRequests:
		return protocol.Errorf(protocol.Unavailable, "", "%s: %s", doing, api.Description)
	}
	if api.Code == statusUnavailable {
		return protocol.Errorf(protocol.Unavailable, "", "%s: %s", doing, api.Description)
	}
	return protocol.Errorf(protocol.Internal, "", "%s: %s (%d)", doing, api.Description, api.ErrorCode)
}

func notProvisioned(doing string) *protocol.Error {
	return protocol.Errorf(
		protocol.FailedPrecondition,
		protocol.ReasonNotProvisioned,
		"%s: Boxfleet's streams do not exist yet: start a coordinator; if one runs, its log says what prevents it "+
			"from making them, such as a max_file_store of NATS that is too small",
		doing,
	)
}

// translateWrite translates an error of storing a message under a subject. If a store is full, the reason says which
// store: a full request queue matters less than a full event log.
func translateWrite(err error, subject string) error {
	doing := "write to " + subject
	var api *jetstream.APIError
	if !errors.As(err, &api) || !storeIsFull(api) {
		return translate(err, doing)
	}
	reason := protocol.ReasonStoreFull
	switch {
	case isUnder(subject, protocol.AppendFilter):
		reason = protocol.ReasonLogFull
	case isUnder(subject, protocol.RequestFilter), isUnder(subject, protocol.UserRequestFilter):
		reason = protocol.ReasonQueueFull
	}
	return protocol.Errorf(protocol.ResourceExhausted, reason, "%s: %s", doing, api.Description)
}

// isUnder reports whether a subject begins with the part of a filter that precedes the filter's wildcards.
func isUnder(subject, filter string) bool {
	return strings.HasPrefix(subject, strings.TrimRight(filter, "*.")+".")
}

// storeIsFull reports whether the server stores no more messages because the stream or the server's store reached its
// limit, or because the disk is full.
func storeIsFull(api *jetstream.APIError) bool {
	switch api.ErrorCode {
	case codeStreamStoreFailed, codeInsufficientStorage, codeInsufficientStore:
		return true
	}
	return strings.Contains(api.Description, "no space left") ||
		strings.Contains(api.Description, "insufficient resources")
}

// isOneOf reports whether err has one of the codes.
func isOneOf(err error, codes ...protocol.Code) bool {
	got := protocol.CodeOf(err)
	for _, c := range codes {
		if got == c {
			return true
		}
	}
	return false
}
