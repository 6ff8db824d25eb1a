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

// checkup answers the query of `boxfleet doctor` for facts that neither ping nor the list of hosts has. Users and
// viewers of a tenant see the late work of their tenant, all others see the late work of every tenant.
func (rd *reader) checkup(ctx context.Context, tenant string, _ *protocol.Query) (*protocol.Reply, error) {
	release, err := rd.checking.take(ctx, tenant)
	if err != nil {
		return nil, err
	}
	defer release()
	r := &protocol.Checkup{SyncAlways: rd.cfg.SyncAlways}
	r.CredentialsIssued, r.CredentialsExpire = rd.conn.CredentialsLife()
	r.Server, r.Cluster, r.MaxPayload = rd.conn.Server()
	if !rd.elected.Load() {
		_, err := rd.conn.AskLeader(ctx, &protocol.LeaderQuery{Tenant: tenant})
		r.Leaderless = protocol.AsError(err) != nil && protocol.AsError(err).Reason == protocol.ReasonNoLeader
	}
	var boxes []*protocol.Sandbox
	of := ""
	if user := jetstream.UserOf(ctx); user != "" && !strings.HasPrefix(user, "@") {
		boxes, of = rd.projection.read.livingOf(tenant), tenant
	} else {
		boxes = rd.projection.read.living()
	}
	r.Sealed = sealedTo(rd.coordinator, of, boxes)
	owed := rd.owed(ctx, boxes)
	slices.SortFunc(owed, func(a, b protocol.Owed) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Sandbox, b.Sandbox),
			cmp.Compare(a.Exec, b.Exec))
	})
	r.OwedCount, r.Owed = len(owed), owed[:min(len(owed), protocol.MaxOwed)]
	return &protocol.Reply{Checkup: r}, nil
}

// A checkup reads at most maxAsked histories, for at most askWithin.
const (
	maxAsked = 200
	// A checkup may first wait readWithin for its slot. The sum is less than the 2 s after which the SDK asks again.
	askWithin = 400 * time.Millisecond
)

// owed lists the work on sandboxes and execs that should have been done by now. Only the history says since when a stop
// or a restart is owed. owed reads the histories with the oldest last record first: the newest are not late yet.
func (rd *reader) owed(ctx context.Context, boxes []*protocol.Sandbox) (owed []protocol.Owed) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	now, late, states, asked := rd.conn.Now(), rd.cfg.Timing.Overdue, rd.hosts.states(), 0
	slices.SortFunc(boxes, func(a, b *protocol.Sandbox) int { return cmp.Compare(a.Record, b.Record) })
	for _, b := range boxes {
		handle := *b
		rd.conditions(&handle, states)
		d := dueOf(&handle)
		if d.kind != "" && d.since.IsZero() && asked < maxAsked && ctx.Err() == nil {
			asked++
			if d.since = rd.lastChange(ctx, b); !d.since.IsZero() && now.Sub(d.since) <= late {
				asked = maxAsked // the histories of the others ended later
			}
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

// lastChange returns the time of the last message of a sandbox's history, or zero if the message cannot be read.
func (rd *reader) lastChange(ctx context.Context, b *protocol.Sandbox) time.Time {
	last, err := rd.conn.LastBatch(ctx, b.Tenant, b.ID)
	if err != nil || len(last.Events) == 0 {
		rd.log.Debug("could not read when a sandbox began to wait for its worker", "sandbox", b.ID, "error", err)
		return time.Time{}
	}
	return last.Events[len(last.Events)-1].Time
}

// owing is the work that a sandbox or an exec waits for, since when, and how long the work may take.
type owing struct {
	kind   protocol.OwedKind // empty: there is no such work
	since  time.Time         // zero: unknown; the caller uses the time of the last message
	within time.Duration
}

// dueOf returns the work that a sandbox waits for.
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

// dueOfExec returns the work that an exec waits for. It returns none for an exec of a pending sandbox: the sandbox
// waits.
func dueOfExec(b *protocol.Sandbox, x *protocol.Exec) owing {
	switch {
	case x.State == protocol.ExecStateAccepted && b.State == protocol.StateReady:
		return owing{protocol.OwedExecStart, x.AcceptedAt, 0}
	case x.State == protocol.ExecStateRunning && x.Spec.Timeout > 0:
		return owing{protocol.OwedExecEnd, x.StartedAt.Add(x.Spec.Timeout.Std()), x.Spec.Grace.Std()}
	}
	return owing{}
}
