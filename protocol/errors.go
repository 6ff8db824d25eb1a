package protocol

import (
	"errors"
	"fmt"
	"strings"
)

// Code is an error code. The list is closed and the same on the wire, in logs and in the SDK.
type Code string

// The codes. A command that exits non-zero is a result, not an error.
const (
	InvalidArgument    Code = "invalid_argument"    // the request is invalid; Field names the cause
	NotFound           Code = "not_found"           // no such sandbox, exec or host
	AlreadyExists      Code = "already_exists"      // another request has already used this id
	FailedPrecondition Code = "failed_precondition" // valid request, wrong state
	ResourceExhausted  Code = "resource_exhausted"  // a limit is reached; the request may succeed later
	Unavailable        Code = "unavailable"         // a component did not answer; retry
	DeadlineExceeded   Code = "deadline_exceeded"   // a time limit has passed
	Cancelled          Code = "cancelled"           // ended on request
	PermissionDenied   Code = "permission_denied"   // the operator's policy forbids it
	OutOfRange         Code = "out_of_range"        // a sequence or offset past the end, or no longer retained
	Internal           Code = "internal"            // a bug in Boxfleet; the message says where
)

// Reasons refine a code. The list grows; clients must accept unknown reasons.
const (
	ReasonSandboxNotReady     = "sandbox_not_ready"
	ReasonSandboxStopping     = "sandbox_stopping"
	ReasonInvalidState        = "invalid_state"
	ReasonExecTerminal        = "exec_already_terminal"
	ReasonUndecodable         = "undecodable"
	ReasonUnsupportedVersion  = "unsupported_version"
	ReasonForeignInbox        = "foreign_inbox"
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
	ReasonOutputDiffers       = "output_differs"   // stored output does not match the SHA-256 in the exec's last event
	ReasonOutputTruncated     = "output_truncated" // the command printed more than its output limit
	ReasonTooLarge            = "too_large"
	ReasonUnsupported         = "unsupported"
	ReasonNotProvisioned      = "not_provisioned"
	ReasonNotProven           = "not_proven"          // a message of the event log whose writer is not proven
	ReasonNoKey               = "no_key"              // the process has no key to sign with
	ReasonNoFleetKey          = "no_fleet_key"        // the coordinator lacks the key that opens sealed values
	ReasonNoCredentials       = "no_credentials"      // the deployment has no credentials, so nobody's identity is proven
	ReasonSecretMissing       = "secret_missing"      // the tenant has no such secret, or not this version
	ReasonNotSealedForThis    = "not_sealed_for_this" // a sealed value is damaged, or belongs to another tenant or name
	ReasonSupervisorUnhealthy = "supervisor_unhealthy"
	ReasonFirewall            = "firewall_unavailable"
	ReasonPortTaken           = "port_taken"
	ReasonLogFull             = "log_full"           // the event log accepts no new work, or no writes at all
	ReasonStoreFull           = "store_full"         // another store (blobs, image files, output or a table) is full
	ReasonDiskFull            = "disk_full"          // a host's disk is full, or a sandbox's share of the disk
	ReasonWouldWeaken         = "would_weaken"       // a setting would discard stored data or reduce its safety
	ReasonNeedsMigration      = "needs_migration"    // only a dedicated command may change the setting
	ReasonServerSettings      = "server_settings"    // the NATS server needs another configuration
	ReasonServerCertificate   = "server_certificate" // the certificate of a NATS server is not trusted
	ReasonClientCertificate   = "client_certificate" // the NATS server refuses the client's certificate, or wants one
	ReasonNoQuorum            = "no_quorum"          // JetStream has no leader: too few servers are up
	ReasonStorageDegraded     = "storage_degraded"   // stored data is less safe than configured
	ReasonNameTaken           = "name_taken"
	ReasonNameIsID            = "name_is_id"   // the name is, or was, the id of a sandbox
	ReasonSpecDiffers         = "spec_differs" // the living sandbox with the name has another spec
	ReasonAmbiguousPrefix     = "ambiguous_prefix"
	ReasonTooManyExecs        = "too_many_execs"
	ReasonTooManyReads        = "too_many_reads"
	ReasonWorkerAway          = "worker_away" // the worker of the sandbox's host does not answer
	ReasonTooManySignals      = "too_many_signals"
	ReasonExecNotRunning      = "exec_not_running" // the exec was accepted and has not started yet
	ReasonSignalOpen          = "signal_open"      // it is not known, and may never be, whether a signal was delivered
	ReasonQuotaSandboxes      = "quota_sandboxes"  // the tenant already has as many sandboxes as its quota allows
	ReasonQuotaExecs          = "quota_execs"
	ReasonQuotaWaiting        = "quota_waiting"
	ReasonQuotaCPU            = "quota_cpu"
	ReasonQuotaMemory         = "quota_memory"
	ReasonQuotaDisk           = "quota_disk"
	ReasonQuotaUploads        = "quota_uploads"
	ReasonTooManyStreams      = "too_many_streams" // the sandbox, tenant or worker has as many streams as are allowed
	ReasonStreamViolation     = "stream_violation" // a frame of a stream breaks the protocol
	ReasonStreamLost          = "stream_lost"      // the other end of a stream does not answer any more
	ReasonStreamClosed        = "stream_closed"    // one end of the stream has closed it
	ReasonNoWorker            = "no_worker"        // the worker does not run, or serves no streams
	ReasonPathNotFound        = "path_not_found"
	ReasonPathExists          = "path_exists"
	ReasonPathDenied          = "path_denied"      // the user may not do this with the file
	ReasonIsDirectory         = "is_directory"     // the operation needs a file
	ReasonNotDirectory        = "not_directory"    // a part of the path is not a directory
	ReasonNotRegular          = "not_regular"      // a device, a FIFO or a socket, or a link where none is allowed
	ReasonNotEmpty            = "not_empty"        // a directory has entries
	ReasonLinkLoop            = "link_loop"        // too many symbolic links
	ReasonReadOnly            = "read_only"        // the file system is read-only
	ReasonFileBusy            = "file_busy"        // the file is a mount point, or a program that runs
	ReasonFileChanged         = "file_changed"     // the file changed while it was read
	ReasonNoMatch             = "no_match"         // the file does not have the text to replace
	ReasonSeveralMatches      = "several_matches"  // the file has the text to replace more than once
	ReasonRescan              = "rescan"           // a watch lost events
	ReasonConnectFailed       = "connect_failed"   // nothing answers at an address in the sandbox
	ReasonConnectionReset     = "connection_reset" // a server in the sandbox ended a connection
	ReasonNotHere             = "not_here"         // the sandbox is not on the worker that was asked
	ReasonNoStdin             = "no_stdin"         // the exec was started without a stdin that stays open
	ReasonBrokenPipe          = "broken_pipe"      // no process of the exec has its stdin open any more
	ReasonInputClosed         = "input_closed"     // the end of the exec's stdin was passed on
	ReasonInputGap            = "input_gap"        // bytes of the exec's stdin before an offset are missing
	ReasonInputTakenOver      = "input_taken_over" // a newer writer writes to the exec's stdin
	ReasonNoLeader            = "no_leader"        // no coordinator leads now, so it is unknown whether a quota has room
)

// Error is the type of every error that Boxfleet reports, on the wire and in the SDK. errors.As finds it as
// *Error; errors.Is compares it with the sentinels below by code, and also by reason if the sentinel has one.
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

// Error returns code, reason, field and message, in this order, as one text.
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

// Is reports whether target is an *Error with the same code and, if target has a reason, the same reason.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	if !ok {
		return false
	}
	return e.Code == t.Code && (t.Reason == "" || e.Reason == t.Reason)
}

// Errorf returns an error with a code and a reason, which may be empty. It redacts credentials in URLs, as
// [Redacted] does, because errors are logged, stored and shown to other users.
func Errorf(code Code, reason, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Message: Redacted(fmt.Sprintf(format, args...))}
}

// Invalid returns an invalid_argument error that names the field. It redacts credentials in URLs as [Errorf]
// does.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: InvalidArgument, Field: field, Message: Redacted(fmt.Sprintf(format, args...))}
}

// AsError returns the *Error in err's chain. Any other error becomes an [Internal] error; nil stays nil.
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

// CodeOf returns the code of err as [AsError] finds it, or "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}
