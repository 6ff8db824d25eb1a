package worker

import (
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// settleGPUs frees the GPUs that a sandbox no longer holds, according to the log and to the state of its container.
func (w *worker) settleGPUs(k key, b *protocol.Sandbox, c decide.ContainerState) {
	switch {
	case c == decide.ContainerUnknown, c == decide.ContainerRunning, holdsHost(b, w.hostID):
	case c == decide.ContainerAbsent:
		w.gpus.Release(k)
	default:
		w.gpus.Rest(k)
	}
}

// holdsHost reports whether a sandbox has its resources on this host reserved, as placement counts them.
func holdsHost(b *protocol.Sandbox, hostID string) bool {
	return b.HostID == hostID && (b.Assigned || b.State == protocol.StateDeleting)
}

// findGPUs makes the sandboxes of these containers hold their GPUs. A container that does not run counts too, until
// its sandbox has a mailbox, which knows whether it still holds them.
func (w *worker) findGPUs(containers []docker.Container) {
	of := map[key][]string{}
	for _, c := range containers {
		k, ok := docker.KeyOf(c.Labels)
		ids := labelledGPUs(c.Labels)
		if !ok || len(ids) == 0 {
			continue
		}
		w.mu.Lock()
		_, settles := w.sandboxes[k]
		w.mu.Unlock()
		if c.Running || !settles {
			of[k] = ids
		}
	}
	w.gpus.Found(of)
}

// labelledGPUs reads the GPUs of a container from its labels.
func labelledGPUs(labels map[string]string) []string {
	if labels[docker.LabelGPUs] == "" {
		return nil
	}
	return strings.Split(labels[docker.LabelGPUs], ",")
}
