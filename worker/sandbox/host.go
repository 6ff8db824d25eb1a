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

// Host is what sandboxes need from their worker. All fields are required.
type Host struct {
	service.Host

	Conn    *jetstream.Conn
	Worker  string // name of the worker
	Token   func() uint64
	Runtime string // the engine's default OCI runtime
	DryRun  bool   // log the objects that should be removed, but do not remove them

	Dirs   hostdir.Root
	Files  hostfiles.Files
	Homes  *hostfiles.Homes
	Images Images

	Network *network.Isolation
	Subnets *network.Subnets
	Ports   protocol.PortRange // ports of the host that sandboxes may publish

	Output    *output.Host
	Trees     treecopy.Copier
	Check     func(s *protocol.SandboxSpec) error // returns an error if the host does not offer what the spec needs
	GPUs      GPUs
	Admission Admission
	Owned     Owned

	Listening func() uint64               // returns how many times the worker has subscribed to notifications
	Settled   func(k protocol.SandboxKey) // called when the host matches the log for the sandbox
}

// Images gets images for containers.
type Images interface {
	// Get returns an image, and keeps it on the host until the caller calls release.
	Get(ctx context.Context, ref, policy string, report func(protocol.PullProgress)) (
		_ docker.Image, release func(), err error)
}

// GPUs assigns the host's GPUs to sandboxes.
type GPUs interface {
	Take(k protocol.SandboxKey, n int) (ids []string, err error)
	Claim(k protocol.SandboxKey, ids []string) error
	Rest(k protocol.SandboxKey)    // keeps the GPUs for the sandbox, unless another sandbox needs them
	Release(k protocol.SandboxKey) // frees the sandbox's GPUs
}

// Admission decides whether the host has room for a sandbox.
type Admission interface {
	// Admit counts a sandbox's resources as used on the host. If the host has no room for the sandbox, Admit explains
	// what is missing.
	Admit(ctx context.Context, k protocol.SandboxKey, t protocol.Totals) (why string, err error)
	Settle(k protocol.SandboxKey, b *protocol.Sandbox, hostID string, there decide.Inspection)
}

// Owned finds this deployment's containers on the engine. Owner returns the sandbox that a container belongs to, and
// false if the container does not belong to this deployment.
type Owned interface {
	Owner(c *docker.Container) (protocol.SandboxKey, bool)
	Containers(ctx context.Context) ([]docker.Container, error)
}
