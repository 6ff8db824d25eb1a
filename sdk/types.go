package sdk

import "github.com/boxfleet/boxfleet/protocol"

// The types below are aliases of types in package protocol, which documents their fields. The two names of a type mean
// the same type.

// SandboxSpec says what a sandbox is: image, command, resources, network, mounts, services. Only Image is required. The
// field Disk needs a host with a storage driver that supports quotas. A create is refused early if no host has such a
// driver. On some hosts, quotas also need a mount option of the file system. If a host lacks the option, the sandbox
// fails while its container is created, with failed_precondition and the field spec.disk.
type SandboxSpec = protocol.SandboxSpec

// ExecSpec says what an exec runs. Only Command, an argv without a shell, is required.
type ExecSpec = protocol.ExecSpec

// Copy places an uploaded tree into a container of the sandbox before that container starts for the first time.
// [Client.Upload] returns a Copy.
type Copy = protocol.Copy

// Mount binds a file or directory of the host into the sandbox, read-only unless Writable is set. The operator's
// allow-list must contain the source.
type Mount = protocol.Mount

// Tmpfs is a file system in memory.
type Tmpfs = protocol.Tmpfs

// Network says what a sandbox may connect to.
type Network = protocol.Network

// Port publishes a port of the sandbox on its host's loopback address.
type Port = protocol.Port

// Hook is a command that runs at a point in the life of a sandbox or a service.
type Hook = protocol.Hook

// Service is a container beside the sandbox, such as a database.
type Service = protocol.Service

// Services holds the services of a sandbox by name.
type Services = protocol.Services

// Healthcheck says how a service shows that it is ready.
type Healthcheck = protocol.Healthcheck

// Bytes is a size in bytes. In text it may have a unit: "512MiB".
type Bytes = protocol.Bytes

// Duration is a time.Duration that is written "1h30m" in text. Duration(d) converts a time.Duration; the method Std
// converts it back.
type Duration = protocol.Duration

// SandboxInfo is a sandbox as a coordinator last described it: its spec, its state, where it runs and why it failed.
type SandboxInfo = protocol.Sandbox

// ExecInfo is an exec as a coordinator last described it.
type ExecInfo = protocol.Exec

// ExecSignal is a signal that was sent to an exec, with its outcome if it is known.
type ExecSignal = protocol.ExecSignal

// SandboxState is the state of a sandbox.
type SandboxState = protocol.SandboxState

// The states of a sandbox.
const (
	StatePending  = protocol.StatePending  // accepted, or being resumed
	StateReady    = protocol.StateReady    // runs and takes execs
	StateStopped  = protocol.StateStopped  // its container is stopped and kept
	StateFailed   = protocol.StateFailed   // failed for good; it can only be deleted
	StateDeleting = protocol.StateDeleting // is being removed
	StateDeleted  = protocol.StateDeleted  // removed; its history is kept for a while
)

// ExecState is the state of an exec.
type ExecState = protocol.ExecState

// The states of an exec. Finished, failed, cancelled and timed_out are final.
const (
	ExecStateAccepted  = protocol.ExecStateAccepted  // not started yet
	ExecStateRunning   = protocol.ExecStateRunning   // started
	ExecStateFinished  = protocol.ExecStateFinished  // ended by itself, with any exit code
	ExecStateFailed    = protocol.ExecStateFailed    // could not run, or was interrupted
	ExecStateCancelled = protocol.ExecStateCancelled // ended on request, or because its sandbox was stopped or deleted
	ExecStateTimedOut  = protocol.ExecStateTimedOut  // exceeded its timeout
)

// Event is one numbered entry of a sandbox's history. Its kinds are the constants of [protocol.Kind].
type Event = protocol.Event

// EventPage is one page of a sandbox's history, as [Sandbox.EventsPage] returns it.
type EventPage = protocol.EventPage

// OutputPage is a piece of one stream of output, as [Exec.OutputPage] and [Sandbox.LogsPage] return it.
type OutputPage = protocol.OutputPage

// Explanation says what a sandbox waits for, and why each host does or does not accept it.
type Explanation = protocol.Explanation

// Ping says which coordinator answered, and how durable the deployment is.
type Ping = protocol.Ping

// Host is a host of the fleet: what its worker reports, and the fields that coordinators add.
type Host = protocol.Host

// ImportedImage is an image that was imported into the fleet, with the workers that get it.
type ImportedImage = protocol.WantedImage

// HostImages lists the images that one worker manages.
type HostImages = protocol.HostImages

// HostImage is one image on one host.
type HostImage = protocol.HostImage

// Error is the error type of every call. Get an Error with errors.As; compare its code with errors.Is and a sentinel
// such as [ErrNotFound].
type Error = protocol.Error

// Code says what kind of error an [Error] is. The set of codes is fixed.
type Code = protocol.Code

// Sentinels for errors.Is, one for each [Code].
var (
	ErrInvalidArgument    = protocol.ErrInvalidArgument
	ErrNotFound           = protocol.ErrNotFound
	ErrAlreadyExists      = protocol.ErrAlreadyExists
	ErrFailedPrecondition = protocol.ErrFailedPrecondition
	ErrResourceExhausted  = protocol.ErrResourceExhausted
	ErrUnavailable        = protocol.ErrUnavailable
	ErrDeadlineExceeded   = protocol.ErrDeadlineExceeded
	ErrCancelled          = protocol.ErrCancelled
	ErrPermissionDenied   = protocol.ErrPermissionDenied
	ErrOutOfRange         = protocol.ErrOutOfRange
	ErrInternal           = protocol.ErrInternal
)
