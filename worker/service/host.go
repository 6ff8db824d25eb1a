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
)

// Host is what services need of their worker. All fields are required.
type Host struct {
	ID         string // of the host, in the log
	Deployment string
	Engine     *docker.Engine
	Epoch      *epoch.Epoch
	Recovery   *epoch.Recovery
	Supervisor string // path of the supervisor's binary

	Now   func() time.Time                        // by the store's clock
	Fence func() error                            // fails without the host's lock
	Lease func() (until time.Duration, err error) // until when the lock may be trusted
	Probe func(point string)                      // for tests that crash the worker

	// A command that never ran for CrashGuard within CrashWindow is in a crash loop.
	CrashWindow, CrashGuard time.Duration

	NameServers    func(*protocol.SandboxSpec) []string
	LimitTerminals func(pid int)
	CheckService   func(s *protocol.SandboxSpec, name string) error  // against what the host offers
	Track          func(k protocol.SandboxKey, pid int, home string) // by the disk watch
}

// Log is the sandbox's history.
type Log interface {
	View(func(st *protocol.State))
	// Append appends what a decision returns, if the sandbox is this host's in this generation. It returns
	// decide.ErrSuperseded if the decision returns nothing.
	Append(ctx context.Context, generation uint64, choose decide.Decision) error
}

// Execs takes reports on the sandbox's execs. Some of them run in services.
type Execs interface {
	Connected(a *attach.Attachment, h control.Hello, first bool)
	Output(o control.Output)
	Ended(result control.Result)
	Restart() // after a container became ready for execs, or ended
}

// Containers are the sandbox's ways to its containers on the engine.
type Containers interface {
	// Inspect returns the zero value if the sandbox has no container of this name.
	Inspect(ctx context.Context, name string) (docker.Container, error)
	// Image gets an image. Call release once the container is made.
	Image(ctx context.Context, generation uint64, ref, pull string) (image docker.Image, release func(), err error)
	// CopyTrees copies the trees for a service into its container.
	CopyTrees(ctx context.Context, container, service string, copies []protocol.Copy, mounted []string) error
	// RestoreRules puts the rules of the sandbox's network in place again.
	RestoreRules(ctx context.Context, spec *protocol.SandboxSpec) error
}

// Config describes a service of a sandbox. All fields are required.
type Config struct {
	Host       *Host
	Key        protocol.SandboxKey
	Name       string
	Required   bool // the sandbox waits for it, and fails with it
	Generation uint64
	Sandbox    protocol.SandboxSpec
	Network    bool // the sandbox's network exists

	Dir        func() hostdir.Dir // of the service
	Output     *output.CommandLog
	Log        Log
	Execs      Execs
	Containers Containers
	Hook       func(ctx context.Context, name string, h *protocol.Hook) (attach.HookResult,
		error) // in the sandbox's own container
	Logger *slog.Logger
}
