package service

import (
	"context"
	"log/slog"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/epoch"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/secrets"
)

// Host is what services need from their worker. All fields are required.
type Host struct {
	ID         string // host's ID in the log
	Deployment string
	Engine     *docker.Engine
	Epoch      *epoch.Epoch
	Recovery   *epoch.Recovery
	Supervisor string // path of the supervisor's binary

	Now   func() time.Time                        // returns the time by the store's clock
	Fence func() error                            // returns an error if the worker does not hold the host's lock
	Lease func() (until time.Duration, err error) // returns the time since boot until which the host's lock may be trusted
	Probe func(point string)                      // called at named points, where tests can crash the worker

	Unseal *secrets.Asker // asks coordinators for the values behind fields of specs

	// A command is in a crash loop if it exits again and again, and no run within CrashWindow lasts for CrashGuard.
	CrashWindow, CrashGuard time.Duration

	NameServers    func(*protocol.SandboxSpec) []string
	LimitTerminals func(pid int)
	CheckService   func(s *protocol.SandboxSpec, name string) error  // fails if the host lacks what the service needs
	Track          func(k protocol.SandboxKey, pid int, home string) // adds a container to the disk watch
}

// Log is the sandbox's history.
type Log interface {
	View(func(st *protocol.State))
	// Append appends the events that choose returns for the newest state. It returns decide.ErrSuperseded if choose
	// returns no events, or if the sandbox is not assigned to this host in this generation.
	Append(ctx context.Context, generation uint64, choose decide.Decision) error
}

// Execs receives the reports on execs, because the sandbox's execs may also run in the containers of its services.
type Execs interface {
	Connected(a *attach.Attachment, h control.Hello, first bool)
	Output(o control.Output)
	Ended(result control.Result)
	Restart() // called when a container has become ready for execs, or has ended
}

// Containers makes and finds containers of the sandbox on the engine.
type Containers interface {
	// Inspect returns the zero value if the sandbox has no container with this name.
	Inspect(ctx context.Context, name string) (docker.Container, error)
	// Image gets an image. Call the returned function release once the container exists.
	Image(ctx context.Context, generation uint64, ref, pull string) (image docker.Image, release func(), err error)
	// CopyTrees copies a service's uploaded trees into its container.
	CopyTrees(ctx context.Context, container, service string, copies []protocol.Copy, mounted []string) error
	// RestoreRules puts the firewall rules of the sandbox's network in place again.
	RestoreRules(ctx context.Context, spec *protocol.SandboxSpec) error
}

// Config describes a service of a sandbox. All fields are required.
type Config struct {
	Host       *Host
	Key        protocol.SandboxKey
	Name       string
	Required   bool // the sandbox waits for the service, and fails if the service fails
	Generation uint64
	Sandbox    protocol.SandboxSpec
	Network    bool // the sandbox's network exists

	Dir        func() hostdir.Dir // returns the service's directory
	Output     *output.CommandLog
	Log        Log
	Execs      Execs
	Containers Containers
	// Hook runs a hook in the sandbox's primary container.
	Hook   func(ctx context.Context, name string, h *protocol.Hook) (attach.HookResult, error)
	Logger *slog.Logger
}
