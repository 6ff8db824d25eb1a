package worker

import (
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/sandbox"
)

// findGPUs records which GPUs the sandboxes of these containers hold. A container that does not run counts too, unless
// its sandbox has a goroutine: that goroutine knows whether the sandbox still holds its GPUs.
func (e *engineWatch) findGPUs(containers []docker.Container) {
	w := e.w
	of := map[protocol.SandboxKey][]string{}
	for _, c := range containers {
		k, ok := docker.KeyOf(c.Labels)
		ids := sandbox.GPUsOf(c.Labels)
		if !ok || len(ids) == 0 {
			continue
		}
		if c.Running || w.mailboxes.get(k) == nil {
			of[k] = ids
		}
	}
	w.gpus.Found(of)
}
