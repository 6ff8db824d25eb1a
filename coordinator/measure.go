package coordinator

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// These reads are the only ones that ask a host. Their answers are not in the log.

func (rd *reader) usage(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	r, err := rd.measure(ctx, tenant, q, false)
	if err != nil {
		return nil, err
	}
	return &protocol.Reply{Usage: r.Usage}, nil
}

func (rd *reader) processes(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	r, err := rd.measure(ctx, tenant, q, true)
	if err != nil {
		return nil, err
	}
	return &protocol.Reply{Processes: r.Processes}, nil
}

// measure asks the worker of a ready sandbox.
func (rd *reader) measure(ctx context.Context, tenant string, q *protocol.Query, processes bool) (
	*protocol.MeasureReply, error) {
	k := key{Tenant: tenant, ID: q.Sandbox}
	j, err := rd.projection.findFresh(ctx, k, 0)
	if err != nil {
		return nil, err
	}
	b := sandboxReply(j, false).Sandbox
	if b.State != protocol.StateReady {
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxNotReady,
			"the sandbox is %s: only a ready sandbox can be measured", b.State)
	}
	release, err := rd.measuring.take(ctx, tenant)
	if err != nil {
		return nil, err
	}
	defer release()
	return rd.conn.AskWorker(ctx, b.Worker, b.HostID, protocol.MeasureQuery{Coordinator: rd.cfg.Name, Tenant: tenant,
		Sandbox: b.ID, Processes: processes})
}
