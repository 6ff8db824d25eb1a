package coordinator

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// checkup answers what `boxfleet doctor` asks besides ping and the hosts. Users and viewers of a tenant learn what is
// owed to their tenant, all others what is owed to any tenant.
func (rd *reader) checkup(ctx context.Context, tenant string, _ *protocol.Query) (*protocol.Reply, error) {
	release, err := rd.reporting.take(ctx, tenant)
	if err != nil {
		return nil, err
	}
	defer release()
	r := &protocol.Checkup{SyncAlways: rd.cfg.SyncAlways, CredentialsExpire: rd.conn.CredentialsExpire()}
	r.Server, r.Cluster, r.MaxPayload = rd.conn.Server()
	if !rd.elected.Load() {
		_, err := rd.conn.AskLeader(ctx, &protocol.LeaderQuery{Tenant: tenant})
		r.Leaderless = protocol.AsError(err) != nil && protocol.AsError(err).Reason == protocol.ReasonNoLeader
	}
	var boxes []*protocol.Sandbox
	if user := jetstream.UserOf(ctx); user != "" && !strings.HasPrefix(user, "@") {
		boxes = rd.projection.read.livingOf(tenant)
	} else {
		boxes = rd.projection.read.living()
	}
	owed := rd.owed(ctx, boxes)
	slices.SortFunc(owed, func(a, b protocol.Owed) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Sandbox, b.Sandbox),
			cmp.Compare(a.Exec, b.Exec))
	})
	r.OwedCount, r.Owed = len(owed), owed[:min(len(owed), protocol.MaxOwed)]
	return &protocol.Reply{Checkup: r}, nil
}

// owed returns what is owed to sandboxes for longer than it may take.
func (rd *reader) owed(ctx context.Context, boxes []*protocol.Sandbox) (owed []protocol.Owed) {
	now, late, states, asked := rd.conn.Now(), rd.cfg.Timing.Overdue, rd.hosts.states(), 0
	for _, b := range boxes {
		handle := *b
		rd.conditions(&handle, states)
		d := dueOf(&handle)
		if d.kind != "" && d.since.IsZero() && asked < protocol.MaxOwed {
			asked++
			d.since = rd.lastChange(ctx, b)
		}
		if d.kind != "" && !d.since.IsZero() && now.Sub(d.since) > d.within+late {
			owed = append(owed, protocol.Owed{Kind: d.kind, Tenant: b.Tenant, Sandbox: b.ID, Worker: b.Worker, Since: d.since})
		}
		if b.ActiveExecs == 0 {
			continue
		}
		rd.projection.journal(key{Tenant: b.Tenant, ID: b.ID}).View(func(s *protocol.State, _ uint64) {
			for _, x := range s.Active() {
				if d := dueOfExec(b, x); d.kind != "" && now.Sub(d.since) > d.within+late {
					owed = append(owed, protocol.Owed{Kind: d.kind, Tenant: b.Tenant, Sandbox: b.ID, Exec: x.ID, Worker: b.Worker,
						Since: d.since})
				}
			}
		})
	}
	return owed
}

// lastChange returns the time of the last message of a sandbox's history, or zero if it cannot be read.
func (rd *reader) lastChange(ctx context.Context, b *protocol.Sandbox) time.Time {
	last, err := rd.conn.LastBatch(ctx, b.Tenant, b.ID)
	if err != nil || len(last.Events) == 0 {
		rd.log.Debug("could not read since when something is owed to a sandbox", "sandbox", b.ID, "error", err)
		return time.Time{}
	}
	return last.Events[len(last.Events)-1].Time
}

// owing says what is owed to a sandbox or an exec, since when, and how long it may take.
type owing struct {
	kind   protocol.OwedKind // empty: nothing is owed
	since  time.Time         // zero: the handle does not say; not before the last message of the history
	within time.Duration
}

// dueOf returns what is owed to a sandbox.
func dueOf(b *protocol.Sandbox) owing {
	switch {
	case waitsForHost(b):
		return owing{protocol.OwedPlacement, b.StateChangedAt, 0}
	case b.State == protocol.StatePending && b.Unreachable:
		return owing{protocol.OwedCreate, b.AssignedAt, 0}
	case b.State == protocol.StatePending:
		return owing{protocol.OwedCreate, b.AssignedAt, b.Spec.CreateTimeout.Std()}
	case b.State == protocol.StateReady && b.Desired == protocol.StateStopped:
		return owing{protocol.OwedStop, time.Time{}, b.Spec.Grace.Std()}
	case b.State == protocol.StateReady && b.Error != nil:
		return owing{protocol.OwedRestart, time.Time{}, 0}
	case b.State == protocol.StateDeleting:
		within := b.Spec.Grace.Std()
		if b.Spec.OnDelete != nil {
			within += b.Spec.OnDelete.Timeout.Std()
		}
		return owing{protocol.OwedDelete, b.StateChangedAt, within}
	}
	return owing{}
}

// dueOfExec returns what is owed to an exec that has not ended. An exec of a pending sandbox waits for its sandbox.
func dueOfExec(b *protocol.Sandbox, x *protocol.Exec) owing {
	switch {
	case x.State == protocol.ExecStateAccepted && b.State == protocol.StateReady:
		return owing{protocol.OwedExecStart, x.AcceptedAt, 0}
	case x.State == protocol.ExecStateRunning && x.Spec.Timeout > 0:
		return owing{protocol.OwedExecEnd, x.StartedAt.Add(x.Spec.Timeout.Std()), x.Spec.Grace.Std()}
	}
	return owing{}
}
