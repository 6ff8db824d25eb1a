package coordinator

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// OutputBudget limits the stored output of each sandbox and of each tenant. A sandbox or tenant that has more loses its
// own oldest output. When the output log is seven eighths full, the tenants and sandboxes with the most output lose
// their oldest output. Otherwise the server would remove the oldest output in the log, which may belong to other
// tenants.
type OutputBudget struct {
	Sandbox protocol.Bytes // default: an eighth of the output log's limit, or 1 GiB if the log has no limit
	Tenant  protocol.Bytes // default: only limited by the output log's limit
}

func (o OutputBudget) check() error {
	if o.Sandbox < 0 || o.Tenant < 0 {
		return protocol.Invalid("coordinator.output_sandbox_bytes, coordinator.output_tenant_bytes",
			"must not be negative")
	}
	return nil
}

// limits returns the limits that follow from the budget and the room of the output log.
func (o OutputBudget) limits(room jetstream.OutputRoom) outputLimits {
	l := outputLimits{sandbox: int64(o.Sandbox), Tenant: int64(o.Tenant), all: room.Limit}
	switch {
	case l.sandbox == 0 && room.Limit > 0:
		l.sandbox = room.Limit / 8
	case l.sandbox == 0:
		l.sandbox = 1 << 30
	}
	return l
}

// Stored output is not measured after every write, but only when enough has been added. A measurement makes the server
// read the new messages, and the server keeps the read messages in memory for ten seconds. With rare measurements, the
// server has freed that memory before the next measurement.
const (
	outputPart  = 32 // measure when a 32nd of the limit has been added
	outputScans = 15 // or after this many scans, if any output has been added
)

// outputKeeper is what the leader knows about the stored output.
type outputKeeper struct {
	mu    sync.Mutex
	usage *outputUsage
	read  bool   // the whole log has been read once
	next  uint64 // the next record to read
	bytes int64  // bytes in the output log at the last measurement
	scans int    // scans since the last measurement

	hosts map[key][]string // by sandbox: hosts that published its output and that it was on
}

// outputSource is a host whose worker published output in the name of a sandbox.
type outputSource struct {
	key
	host string
}

// foreignOutput is output that a host's worker published in the name of a sandbox that was never on the host. No reader
// reads such output.
type foreignOutput struct {
	through uint64 // the last record of such output
	bytes   int64
}

// boundOutput removes output beyond the budget, while the lease lasts.
func (l *leader) boundOutput(ctx context.Context) error {
	return l.retry(ctx, "bound the stored output", func() error {
		room, err := l.conn.OutputRoom(ctx)
		if err != nil {
			return err
		}
		k := &outputKeeper{usage: newOutputUsage(l.cfg.Output.limits(room).sandbox / outputPieces), next: 1,
			hosts: map[key][]string{}}
		l.output.Store(k)
		defer l.output.Store(nil)
		for {
			if err := l.measureOutput(ctx, k); err != nil {
				return err
			}
			if !backoff.Sleep(ctx, l.cfg.Timing.Output) {
				return ctx.Err()
			}
		}
	})
}

// purged records that a sandbox has no stored output any more. A nil k is allowed.
func (k *outputKeeper) purged(of key) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.usage.forget(of, math.MaxUint64)
	delete(k.hosts, of)
}

// The method "of" returns the size of one tenant's stored output at the last measurement, or nil if the log has not
// been read yet.
func (k *outputKeeper) of(tenant string) *protocol.Bytes {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.read {
		return nil
	}
	n := protocol.Bytes(0)
	if t := k.usage.tenants[tenant]; t != nil {
		n = protocol.Bytes(t.bytes)
	}
	return &n
}

// tenants adds the tenants with stored output to names.
func (k *outputKeeper) tenants(names map[string]struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for tenant := range k.usage.tenants {
		names[tenant] = struct{}{}
	}
}

// measureOutput reads the sizes of new output once enough has been added, and removes the output that exceeds the
// budget.
func (l *leader) measureOutput(ctx context.Context, k *outputKeeper) error {
	room, err := l.conn.OutputRoom(ctx)
	if err != nil {
		return err
	}
	limits := l.cfg.Output.limits(room)
	quotas := l.allQuotas()
	limits.quota = func(tenant string) int64 { return int64(quotaIn(quotas, tenant).Output) }
	k.scans++
	most := cmp.Or(limits.all, 8*limits.sandbox)
	enough := k.scans >= outputScans || room.Bytes-k.bytes >= most/outputPart || room.Bytes >= lessEighth(most)
	if room.Last+1 == k.next || !enough {
		k.mu.Lock()
		k.read = k.read || room.Last+1 == k.next // if the log is empty, there is nothing to read
		k.mu.Unlock()
		return nil
	}
	foreign := map[outputSource]*foreignOutput{}
	k.next, err = l.conn.OutputSizes(ctx, k.next, func(m jetstream.StoredOutput) {
		// The history is read once for each host that publishes in the name of a sandbox, not for each message.
		if foreign[outputSource{key{Tenant: m.Tenant, ID: m.Sandbox}, m.Host}] != nil || l.isForeign(ctx, k, &m) {
			addForeign(foreign, &m)
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.usage.add(m)
	})
	if err == nil {
		err = l.removeForeign(ctx, foreign)
	}
	if err != nil {
		return err
	}
	k.scans, k.bytes = 0, room.Bytes
	k.mu.Lock()
	k.read = true
	k.mu.Unlock()
	return l.cutOutput(ctx, k, limits, room)
}

// isForeign reports whether a sandbox was never on the host that published a message in its name. Such output must not
// count in the budget of the sandbox.
func (l *leader) isForeign(ctx context.Context, k *outputKeeper, m *jetstream.StoredOutput) bool {
	of := key{Tenant: m.Tenant, ID: m.Sandbox}
	k.mu.Lock()
	known := slices.Contains(k.hosts[of], m.Host)
	k.mu.Unlock()
	if m.Host == "" || known {
		return false
	}
	never, err := l.wasNeverOn(ctx, of, m.Host)
	if never || err != nil {
		return never // after an error the output counts, and the next message asks again
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	// The names in the message would keep the whole message in memory.
	of = key{Tenant: strings.Clone(m.Tenant), ID: strings.Clone(m.Sandbox)}
	k.hosts[of] = append(k.hosts[of], strings.Clone(m.Host))
	return false
}

// wasNeverOn reports whether the history says that a sandbox was never on a host.
func (l *leader) wasNeverOn(ctx context.Context, of key, host string) (never bool, err error) {
	j, err := l.projection.find(ctx, of, 0)
	if err == nil {
		err = j.Refresh(ctx)
	}
	if protocol.CodeOf(err) == protocol.NotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(outputOf(j, key{}, "").Hosts,
		func(h protocol.OutputHost) bool { return h.ID == host }), nil
}

func addForeign(all map[outputSource]*foreignOutput, m *jetstream.StoredOutput) {
	s := outputSource{key{Tenant: m.Tenant, ID: m.Sandbox}, m.Host}
	if all[s] == nil {
		all[s] = &foreignOutput{}
	}
	all[s].through, all[s].bytes = m.Record, all[s].bytes+m.Bytes
}

// removeForeign removes the output of hosts that the sandboxes were never on.
func (l *leader) removeForeign(ctx context.Context, foreign map[outputSource]*foreignOutput) error {
	byHost := map[string]int64{}
	for s, f := range foreign {
		if err := l.lease.Check(); err != nil {
			return err
		}
		// The sandbox may have come to the host since its output was first seen. That output stays, and counts after the
		// next change of leader.
		never, err := l.wasNeverOn(ctx, s.key, s.host)
		if err != nil {
			return err
		}
		if !never {
			continue
		}
		if err := l.conn.PurgeOutputOf(ctx, s.host, s.Tenant, s.ID, f.through); err != nil {
			return err
		}
		byHost[s.host] += f.bytes
	}
	for host, bytes := range byHost {
		l.log.Error("removed output that a worker published in the name of sandboxes that were never on its host: "+
			"the worker may have been taken over", "host", host, "bytes", bytes)
	}
	return nil
}

// cutOutput removes the output that exceeds the limits.
func (l *leader) cutOutput(ctx context.Context, k *outputKeeper, limits outputLimits, room jetstream.OutputRoom) error {
	k.mu.Lock()
	k.usage.expire(room.First)
	cuts := k.usage.cuts(limits, room.Bytes)
	k.mu.Unlock()
	for _, cut := range cuts {
		if err := l.lease.Check(); err != nil {
			return err
		}
		if err := l.conn.PurgeOutput(ctx, cut.Tenant, cut.ID, cut.through); err != nil {
			return err
		}
		l.log.Info("removed the oldest output of a sandbox to stay within the limits",
			"tenant", cut.Tenant, "sandbox", cut.ID, "bytes", cut.bytes)
		k.bytes -= cut.bytes
		k.mu.Lock()
		k.usage.forget(cut.key, cut.through)
		k.mu.Unlock()
	}
	return nil
}
