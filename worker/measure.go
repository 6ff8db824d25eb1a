package worker

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// measure answers a coordinator that asks what a sandbox uses.
func (w *worker) measure(ctx context.Context, q *protocol.MeasureQuery) (*protocol.MeasureReply, error) {
	s := w.mailboxes.get(protocol.SandboxKey{Tenant: q.Tenant, ID: q.Sandbox})
	if s == nil {
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxNotReady,
			"the sandbox does not run on host %s (worker %s) at the moment", w.hostID, w.cfg.Name)
	}
	if q.Processes {
		return &protocol.MeasureReply{Processes: s.Processes(ctx)}, nil
	}
	return &protocol.MeasureReply{Usage: s.Usage()}, nil
}
