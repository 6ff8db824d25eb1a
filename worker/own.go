package worker

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// ownership distinguishes the containers of this deployment's sandboxes from other containers on the engine.
type ownership struct {
	engine     *docker.Engine
	deployment string
	stateDir   string // Config.StateDir
}

// Owner returns the sandbox of a container, and false if the container does not belong to this deployment. An image may
// have any label, and the engine copies the image's labels to every container of the image. If the image has labels of
// Boxfleet, the container must therefore also have two properties that no image can give it: the name of one of the
// sandbox's containers, and a mount from the worker's state directory.
func (o ownership) Owner(c *docker.Container) (protocol.SandboxKey, bool) {
	k, ok := docker.KeyOf(c.Labels)
	if !ok || c.Labels[docker.LabelDeployment] != o.deployment {
		return k, false
	}
	if !c.Doubtful {
		return k, true
	}
	own := filepath.Join(o.stateDir, o.deployment) + "/"
	return k, o.hasName(k, c.Name) && slices.ContainsFunc(c.Binds,
		func(source string) bool { return strings.HasPrefix(source, own) })
}

// Containers lists the containers of this deployment's sandboxes.
func (o ownership) Containers(ctx context.Context) ([]docker.Container, error) {
	all, err := o.engine.Containers(ctx)
	return slices.DeleteFunc(all, func(c docker.Container) bool {
		_, ours := o.Owner(&c)
		return !ours
	}), err
}

// hasName reports whether name is the name of one of the sandbox's containers.
func (o ownership) hasName(k protocol.SandboxKey, name string) bool {
	base := docker.ObjectName(o.deployment, k)
	return name == base || strings.HasPrefix(name, base+".")
}
