package worker

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/worker/docker"
)

// ours says whether a container is of this deployment's sandboxes, and of which one. An image may carry any
// label, and the engine gives it to each container of that image, whoever makes it. So where the image has
// labels of Boxfleet's, the container must have what no image can give it: the sandbox's name, and a mount
// of the worker's own directory.
func (w *worker) ours(c *docker.Container) (key, bool) {
	k, ok := labelledKey(c.Labels)
	if !ok || c.Labels[docker.LabelDeployment] != w.conn.Deployment() {
		return k, false
	}
	if !c.Doubtful {
		return k, true
	}
	own := filepath.Join(w.cfg.StateDir, w.conn.Deployment()) + "/"
	return k, w.hasName(k, c.Name) && slices.ContainsFunc(c.Binds, func(source string) bool { return strings.HasPrefix(source, own) })
}

// containers lists the containers of this deployment's sandboxes.
func (w *worker) containers(ctx context.Context) ([]docker.Container, error) {
	all, err := w.engine.Containers(ctx)
	return slices.DeleteFunc(all, func(c docker.Container) bool {
		_, ours := w.ours(&c)
		return !ours
	}), err
}

// hasName says whether a container is called as those of a sandbox are.
func (w *worker) hasName(k key, name string) bool {
	base := nameOf(w.conn.Deployment(), k)
	return name == base || strings.HasPrefix(name, base+".")
}

func nameOf(deployment string, k key) string { return docker.ObjectName(deployment, k) }

func labelledKey(labels map[string]string) (key, bool) { return docker.KeyOf(labels) }
