package execs

import (
	"context"
	"log/slog"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/secrets"
)

// Config describes what the execs of a sandbox need. All fields are required.
type Config struct {
	HostID string // host's ID in the log
	Key    protocol.SandboxKey

	Log        Log
	Containers Containers
	Clock      Clock
	Output     *output.Host
	Unseal     *secrets.Asker // asks coordinators for the values of secrets

	Fence  func() error       // returns an error if the worker does not hold the host's lock
	Probe  func(point string) // called at named points, where tests can crash the worker
	Wake   func()             // makes the sandbox's goroutine call Start again
	Reread func()             // makes the sandbox's goroutine read the log before it calls Start again
	Logger *slog.Logger
}

// Log is the sandbox's history.
type Log interface {
	View(func(st *protocol.State))
	// AppendEvents appends the events that choose returns for the newest state, and returns them with their sequence
	// numbers. It returns decide.ErrSuperseded if choose returns no events, or if the sandbox is not assigned to this
	// host in this generation.
	AppendEvents(ctx context.Context, generation uint64, choose decide.Decision) ([]protocol.Event, error)
	// Refresh reads the events that other writers have appended.
	Refresh(ctx context.Context) error
}

// Containers are the containers in which execs run. The service "" stands for the primary container.
type Containers interface {
	// Attachment returns the connection to the supervisor of a container, or nil if there is no connection.
	Attachment(service string) *attach.Attachment
	// Status also reports whether the container is down, and whether its service was given up: the worker then does not
	// start the container again. Only the sandbox's goroutine calls Status.
	Status(service string) (a *attach.Attachment, down, givenUp bool)
	// Dir returns the sandbox's directory of a generation.
	Dir(generation uint64) hostdir.Dir
	// StoppedForDisk returns why the disk watch stopped the sandbox, or nil if it did not.
	StoppedForDisk() *protocol.Error
}

// Clock tells the time of the store, which all hosts share.
type Clock interface {
	Now() time.Time
	StoreTime(local time.Time) time.Time
}
