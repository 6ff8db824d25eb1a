package worker

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/worker/docker"
)

// ours reports whether a container belongs to a sandbox of this deployment, and to which one. Labels alone do not
// prove it: an image may have any labels, and the engine copies them to every container of that image. So if the image
// has labels of Boxfleet, the container must also have two things that no image can give it: the sandbox's name, and a
// mount from the worker's state directory.
func (w *worker) ours(c *docker.Container) (key, bool) {
	k, ok := labelledKey(c.Labels)
	if !ok || c.Labels[docker.LabelDeployment] != w.conn.Deployment() {
		return k, false
	}
	if !c.Doubtful {
		return k, true
	}
	stateDir := filepath.Join(w.cfg.StateDir, w.conn.Deployment()) + "/"
	mounted := slices.ContainsFunc(c.Binds, func(source string) bool { return strings.HasPrefix(source, stateDir) })
	return k, mounted && w.hasName(k, c.Name)
}

// containers lists the containers of this deployment's sandboxes.
func (w *worker) containers(ctx context.Context) ([]docker.Container, error) {
	all, err := w.engine.Containers(ctx)
	return slices.DeleteFunc(all, func(c docker.Container) bool {
		_, ours := w.ours(&c)
		return !ours
	}), err
}

// hasName reports whether a container has a name that only containers of this sandbox have.
func (w *worker) hasName(k key, name string) bool {
	base := nameOf(w.conn.Deployment(), k)
	return name == base || strings.HasPrefix(name, base+".")
}

func nameOf(deployment string, k key) string { return docker.ObjectName(deployment, k) }

func labelledKey(labels map[string]string) (key, bool) { return docker.KeyOf(labels) }
