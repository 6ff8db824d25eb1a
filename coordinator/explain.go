package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/protocol"
)

// explainExecs adds to an explanation why the sandbox's accepted execs wait.
func (rd *reader) explainExecs(e *protocol.Explanation) {
	b := e.Sandbox
	waiting, sealed := 0, ""
	rd.projection.journal(key{Tenant: b.Tenant, ID: b.ID}).View(func(s *protocol.State, _ uint64) {
		for _, x := range s.Active() {
			if x.State != protocol.ExecStateAccepted {
				continue
			}
			if waiting++; waiting == 1 || x.AcceptedAt.Before(e.Since) {
				e.Since, e.Deadline = x.AcceptedAt, x.AcceptedAt.Add(x.Spec.StartWithin())
			}
			sealed = cmp.Or(sealed, whyUnopened(rd.coordinator, b.Tenant, x.Spec.SecretFields()))
		}
	})
	if waiting == 0 {
		return
	}
	var host *protocol.Host
	for _, h := range rd.hosts.list() {
		if h.HostID == b.HostID {
			host = h
		}
	}
	e.Waiting = fmt.Sprintf("%d execs are accepted and not started: %s", waiting, cmp.Or(sealed, whyNotStarted(b, host)))
}

// explain answers why a sandbox waits.
func (rd *reader) explain(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	r, err := rd.get(ctx, tenant, q)
	if err != nil {
		return nil, err
	}
	b := r.Sandbox
	e := &protocol.Explanation{Sandbox: b, Since: b.StateChangedAt}
	switch {
	case b.State == protocol.StatePending &&
		(!b.Assigned || rd.hosts.states()[b.HostID] == protocol.HostLost || rd.hosts.forgotten(b.HostID)):
		hosts := rd.hosts.list()
		_, e.Hosts = placement.Place(placement.WithoutExpiredRefusals(b, rd.conn.Now()), hosts, rd.images.list())
		e.Waiting, e.Deadline = "no host takes it now", queueDeadline(b, rd.cfg.Timing.Overdue)
		if len(hosts) == 0 {
			e.Waiting = "there is no host"
		}
		if why := rd.heldBy(b); why != nil {
			e.Waiting = why.Message
		}
		e.Position = 1 + slices.IndexFunc(rd.waitingForHost(hosts),
			func(w *protocol.Sandbox) bool { return w.Tenant == b.Tenant && w.ID == b.ID })
	case b.State == protocol.StatePending:
		e.Waiting, e.Since = "worker "+b.Worker+" prepares it", b.AssignedAt
		if b.Phase != "" {
			e.Waiting += ", phase " + b.Phase
		}
		if p := b.Pull; p != nil && !p.Complete {
			e.Waiting += fmt.Sprintf(": it pulls %s, %s of %s so far", p.Image, p.Done, p.Total)
		} else if why := whyUnopened(rd.coordinator, tenant, b.Spec.SecretFields()); why != "" {
			e.Waiting += "; " + why
		}
		e.Deadline = b.AssignedAt.Add(b.Spec.CreateTimeout.Std())
	case b.State == protocol.StateReady && b.Desired == protocol.StateStopped:
		e.Waiting = "worker " + b.Worker + " stops it"
	case b.State == protocol.StateReady && b.Error != nil:
		e.Waiting = "worker " + b.Worker + " starts it again: " + b.Error.Error()
	case b.State == protocol.StateDeleting:
		e.Waiting = "worker " + b.Worker + " removes it"
	case b.Error != nil:
		e.Waiting = "nothing: it failed: " + b.Error.Error()
	default:
		e.Waiting = "nothing"
		rd.explainExecs(e)
	}
	if b.Unreachable {
		e.Waiting += "; its host does not answer"
	}
	return &protocol.Reply{Explain: e, Sequence: b.Sequence}, nil
}
