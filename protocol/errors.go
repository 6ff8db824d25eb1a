package protocol

import (
	"errors"
	"fmt"
	"strings"
)

// Code is the closed list of error codes, the same on the wire, in the log and in the SDK.
type Code string

// The codes. A command that exited non-zero is a result and has none of them.
const (
	InvalidArgument    Code = "invalid_argument"    // the request is wrong in itself; Field names where
	NotFound           Code = "not_found"           // no such sandbox, exec, host
	AlreadyExists      Code = "already_exists"      // the id was used before, by somebody else, at any time
	FailedPrecondition Code = "failed_precondition" // right request, wrong state
	ResourceExhausted  Code = "resource_exhausted"  // a limit is reached; may succeed later
	Unavailable        Code = "unavailable"         // a part did not answer; try again
	DeadlineExceeded   Code = "deadline_exceeded"   // the time given was over first
	Cancelled          Code = "cancelled"           // ended because somebody asked for it
	PermissionDenied   Code = "permission_denied"   // the operator's policy forbids it
	OutOfRange         Code = "out_of_range"        // a sequence or offset beyond the end, or no longer kept
	Internal           Code = "internal"            // a defect of Boxfleet; the message says where
)

// Finer reasons, beside the code. The list grows; a client must accept reasons it does not know.
const (
	ReasonSandboxNotReady     = "sandbox_not_ready"
	ReasonSandboxStopping     = "sandbox_stopping"
	ReasonInvalidState        = "invalid_state"
	ReasonExecTerminal        = "exec_already_terminal"
	ReasonUndecodable         = "undecodable"
	ReasonUnsupportedVersion  = "unsupported_version"
	ReasonUnknownField        = "unknown_field"
	ReasonQueueFull           = "queue_full"
	ReasonRequestUsed         = "request_id_used"
	ReasonQueueTimeout        = "queue_timeout"
	ReasonNoNetwork           = "no_network"
	ReasonNoGPU               = "no_gpu"
	ReasonNoHost              = "no_host"
	ReasonHostLost            = "host_lost"
	ReasonHostForgotten       = "host_forgotten"
	ReasonNoRoom              = "no_room"
	ReasonDrained             = "drained"
	ReasonHostHeld            = "host_held"
	ReasonLeaseLost           = "lease_lost"
	ReasonCreateTimeout       = "create_timeout"
	ReasonImageNotFound       = "image_not_found"
	ReasonImagePullFailed     = "image_pull_failed"
	ReasonImagePullStalled    = "image_pull_stalled"
	ReasonImageDenied         = "image_denied"
	ReasonRegistryUnreachable = "registry_unreachable"
	ReasonContainerExited     = "container_exited"
	ReasonContainerMissing    = "container_missing"
	ReasonOOMKilled           = "oom_killed"
	ReasonCrashLoop           = "crash_loop"
	ReasonCommandExited       = "command_exited"
	ReasonUnhealthy           = "unhealthy"
	ReasonHookFailed          = "hook_failed"
	ReasonServiceDown         = "service_down"
	ReasonEngineUnavailable   = "engine_unavailable"
	ReasonEngineRestarted     = "engine_restarted"
	ReasonInterrupted         = "interrupted"
	ReasonStartFailed         = "start_failed"
	ReasonUserUnknown         = "user_unknown"
	ReasonCwdInvalid          = "cwd_invalid"
	ReasonMountDenied         = "mount_denied"
	ReasonPolicyDenied        = "policy_denied"
	ReasonToolUnavailable     = "tool_unavailable"
	ReasonCopyFailed          = "copy_failed"
	ReasonSandboxStopped      = "sandbox_stopped"
	ReasonSandboxDeleted      = "sandbox_deleted"
	ReasonSandboxFailed       = "sandbox_failed"
	ReasonStopRequested       = "stop_requested"
	ReasonIdleTTL             = "idle_ttl"
	ReasonTTL                 = "ttl"
	ReasonDeleteRequested     = "delete_requested"
	ReasonCleanupTTL          = "cleanup_ttl"
	ReasonCancelRequested     = "cancel_requested"
	ReasonTimeout             = "timeout"
	ReasonStartTimeout        = "start_timeout"
	ReasonDeadLettered        = "dead_lettered"
	ReasonAbandoned           = "abandoned_reservation"
	ReasonSequenceBeyondEnd   = "sequence_beyond_end"
	ReasonSequenceNotKept     = "sequence_not_kept"
	ReasonOutputNotKept       = "output_not_kept"
	ReasonTooLarge            = "too_large"
	ReasonUnsupported         = "unsupported"
	ReasonNotProvisioned      = "not_provisioned"
	ReasonSupervisorUnhealthy = "supervisor_unhealthy"
	ReasonFirewall            = "firewall_unavailable"
	ReasonPortTaken           = "port_taken"
	ReasonLogFull             = "log_full"         // the event log takes no new work, or nothing at all
	ReasonStoreFull           = "store_full"       // a store beside it, of blobs, image files, output or a table, is full
	ReasonDiskFull            = "disk_full"        // a host's disk, or the part of it that a sandbox may use, is full
	ReasonWouldWeaken         = "would_weaken"     // a setting would give up what is stored, or how safely
	ReasonNeedsMigration      = "needs_migration"  // a setting that only its own command changes
	ReasonServerSettings      = "server_settings"  // the NATS server has to be configured otherwise
	ReasonNoQuorum            = "no_quorum"        // JetStream has no leader: too few of its servers are there
	ReasonStorageDegraded     = "storage_degraded" // what is stored is less safe than it should be
	ReasonNameTaken           = "name_taken"
	ReasonAmbiguousPrefix     = "ambiguous_prefix"
	ReasonTooManyExecs        = "too_many_execs"
	ReasonTooManyReads        = "too_many_reads"
)

// Error is every error that Boxfleet reports, on the wire and in the SDK. errors.As with a *Error
// matches all of them; errors.Is compares with the sentinels below by code, and by reason where
// the sentinel has one.
type Error struct {
	Code    Code   `json:"code"`
	Reason  string `json:"reason,omitempty"`
	Field   string `json:"field,omitempty"` // path of the offending field, such as "spec.env.1X"
	Message string `json:"message"`
}

// Sentinels for errors.Is.
var (
	ErrInvalidArgument    = &Error{Code: InvalidArgument}
	ErrNotFound           = &Error{Code: NotFound}
	ErrAlreadyExists      = &Error{Code: AlreadyExists}
	ErrFailedPrecondition = &Error{Code: FailedPrecondition}
	ErrResourceExhausted  = &Error{Code: ResourceExhausted}
	ErrUnavailable        = &Error{Code: Unavailable}
	ErrDeadlineExceeded   = &Error{Code: DeadlineExceeded}
	ErrCancelled          = &Error{Code: Cancelled}
	ErrPermissionDenied   = &Error{Code: PermissionDenied}
	ErrOutOfRange         = &Error{Code: OutOfRange}
	ErrInternal           = &Error{Code: Internal}
)

// Error prints code, reason, field and message on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Code))
	if e.Reason != "" {
		b.WriteString(" (" + e.Reason + ")")
	}
	if e.Field != "" {
		b.WriteString(": " + e.Field)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// Is matches a sentinel: same code, and same reason where the target has one.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	if !ok {
		return false
	}
	return e.Code == t.Code && (t.Reason == "" || e.Reason == t.Reason)
}

// Errorf makes an error with a code and a reason; the reason may be empty. Passwords in URLs are left out of
// its message, since errors are logged, stored and shown to others.
func Errorf(code Code, reason, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Message: Redacted(fmt.Sprintf(format, args...))}
}

// Invalid makes an invalid_argument error that names the field, as Errorf does.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: InvalidArgument, Field: field, Message: Redacted(fmt.Sprintf(format, args...))}
}

// AsError returns err as an *Error; an error of another kind becomes [Internal], nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: Internal, Message: err.Error()}
}

// CodeOf returns the code of err, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}
