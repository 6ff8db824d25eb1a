package sandbox

import (
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// settleGPUs frees the GPUs that the sandbox no longer needs, according to the log and to the state of its container.
func settleGPUs(s *Sandbox, b *protocol.Sandbox) {
	switch c := s.local.Container; {
	case c == decide.ContainerUnknown, c == decide.ContainerRunning, decide.HoldsHost(b, s.host.ID):
	case c == decide.ContainerAbsent:
		s.host.GPUs.Release(s.key)
	default:
		s.host.GPUs.Rest(s.key)
	}
}

// GPUsOf reads the GPUs of a container from its labels.
func GPUsOf(labels map[string]string) []string {
	if labels[docker.LabelGPUs] == "" {
		return nil
	}
	return strings.Split(labels[docker.LabelGPUs], ",")
}
