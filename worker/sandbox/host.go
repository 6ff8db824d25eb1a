package sandbox

import (
	"context"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/network"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/service"
	"github.com/boxfleet/boxfleet/worker/treecopy"
)

// Host is what sandboxes need of their worker. All fields are required.
type Host struct {
	service.Host

	Conn    *jetstream.Conn
	Worker  string // name of the worker
	Token   func() uint64
	Runtime string // the engine's default OCI runtime
	DryRun  bool   // report leftovers, and keep them

	Dirs   hostdir.Root
	Files  hostfiles.Files
	Homes  *hostfiles.Homes
	Images Images

	Network *network.Isolation
	Subnets *network.Subnets
	Ports   protocol.PortRange // that may be published

	Output    *output.Host
	Trees     treecopy.Copier
	Check     func(s *protocol.SandboxSpec) error // against what the host offers
	GPUs      GPUs
	Admission Admission
	Owned     Owned

	Listening func() uint64               // how often the worker began to hear notifications
	Settled   func(k protocol.SandboxKey) // nothing of the sandbox is left on the host that should not be there
}

// Images gets images for containers.
type Images interface {
	// Get returns an image, and keeps it until release is called.
	Get(ctx context.Context, ref, policy string, report func(protocol.PullProgress)) (
		_ docker.Image, release func(), err error)
}

// GPUs assigns the host's GPUs to sandboxes.
type GPUs interface {
	Take(k protocol.SandboxKey, n int) (ids []string, err error)
	Claim(k protocol.SandboxKey, ids []string) error
	Rest(k protocol.SandboxKey)    // keeps them for the sandbox, unless another one needs them
	Release(k protocol.SandboxKey) // frees them
}

// Admission decides whether the host has room.
type Admission interface {
	// Admit counts a sandbox on the host. If there is no room for it, why explains what is missing.
	Admit(ctx context.Context, k protocol.SandboxKey, t protocol.Totals) (why string, err error)
	Settle(k protocol.SandboxKey, b *protocol.Sandbox, hostID string, there decide.Inspection)
}

// Owned finds this deployment's containers on the engine.
type Owned interface {
	Owner(c *docker.Container) (protocol.SandboxKey, bool)
	Containers(ctx context.Context) ([]docker.Container, error)
}
