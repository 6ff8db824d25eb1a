package worker

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/network"
)

// maxPortTries is how often a create chooses ports when somebody else takes them before the container starts.
const maxPortTries = 5

// launch creates the container if there is none, and starts it. When a port that the worker chose is taken by the time
// the container starts, launch removes the container and creates it again with another port.
func (s *sandbox) launch(ctx context.Context, b *protocol.Sandbox, create func(ports []protocol.Port) (string, error),
	start func(id string) (*attachment, error)) (id string, a *attachment, err error) {
	id = s.container.ID
	for try := 1; ; try++ {
		if id == "" {
			ports, err := s.w.isolation.ChoosePorts(s.w.ports, b.Spec.Ports, s.log)
			if err != nil {
				return "", nil, err
			}
			if id, err = create(ports); err != nil {
				return "", nil, err
			}
		}
		a, err = start(id)
		named, retry := network.PortConflict(err, b.Spec.Ports)
		if !retry || try == maxPortTries {
			return id, a, named
		}
		s.log.Info("a chosen port was taken meanwhile; choosing another", "error", err)
		if err := s.w.engine.RemoveContainer(ctx, id); err != nil {
			return "", nil, err
		}
		id, s.container, s.inspection.Container = "", docker.Container{}, decide.ContainerAbsent
	}
}
