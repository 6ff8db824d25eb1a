package coordinator

import (
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
)

// tenantShares counts what each tenant uses. The counts are sums over the sandboxes in memory, which are folded from
// the log. Each fold replaces the share of one sandbox, so the counts cannot differ from the log.
type tenantShares struct {
	mu *sync.RWMutex // the projection's lock

	of   map[key]share     // by sandbox; a sandbox that uses nothing has no entry
	sums map[string]*share // by tenant

	claims  map[claimName]claim // room that requests claimed and the log does not show yet; only the leader has claims
	claimed map[string]*share   // sums of the claims, by tenant
}

// share is the part of a tenant's quota that one sandbox or all sandboxes of the tenant use.
type share struct {
	load           // reserved on hosts; load.sandboxes also counts sandboxes that are stopped on a host
	execs, waiting int
	uploads        protocol.Bytes // size of uploads; only claims have it
}

func (s *share) add(v share, sign int) {
	s.load.add(v.load, sign)
	s.execs += sign * v.execs
	s.waiting += sign * v.waiting
	s.uploads += protocol.Bytes(sign) * v.uploads
}

func newTenantShares(mu *sync.RWMutex) tenantShares {
	return tenantShares{
		mu: mu, of: map[key]share{}, sums: map[string]*share{}, claims: map[claimName]claim{}, claimed: map[string]*share{},
	}
}

// sumOf returns the sum of a tenant. If the tenant has none, sumOf makes one.
func sumOf(sums map[string]*share, tenant string) *share {
	s := sums[tenant]
	if s == nil {
		s = &share{}
		sums[strings.Clone(tenant)] = s // the name in a message would keep the whole message in memory
	}
	return s
}

// countLocked replaces the share of a sandbox. b is the sandbox's handle, or nil if the sandbox is not living.
// countLocked reports whether the sandbox now uses less.
func (w *workingState) countLocked(k key, b *protocol.Sandbox) (less bool) {
	t := &w.tenants
	before, now := t.of[k], w.shareLocked(k, b)
	if before == now {
		return false
	}
	sum := sumOf(t.sums, k.Tenant)
	sum.add(before, -1)
	sum.add(now, 1)
	if *sum == (share{}) {
		delete(t.sums, k.Tenant)
	}
	if now == (share{}) {
		delete(t.of, k)
	} else {
		t.of[k] = now
	}
	return before.sandboxes > now.sandboxes || before.nanoCPU > now.nanoCPU || before.mem > now.mem ||
		before.disk > now.disk
}

// shareLocked returns what a sandbox uses now. An assignment in flight counts in place of an earlier assignment.
func (w *workingState) shareLocked(k key, b *protocol.Sandbox) share {
	if b == nil {
		return share{}
	}
	s := share{load: w.assigned[k].used, execs: b.ActiveExecs}
	if f, flying := w.inFlight[k]; flying && f.host != "" {
		s.load = f.used
	}
	if s.sandboxes == 0 && staysOnHost(b) {
		s.sandboxes = 1
	}
	if waitsForHost(b) {
		s.waiting = 1
	}
	return s
}

// staysOnHost reports whether a sandbox that reserves nothing still has its container and files on a host.
func staysOnHost(b *protocol.Sandbox) bool {
	return b.Worker != "" && (b.State == protocol.StateStopped || b.State == protocol.StatePending && b.Resuming)
}

// overLocked returns an error if a limit of a quota leaves no room for a sandbox with the load l. The error names the
// limit. The sandbox's present share does not count.
func (w *workingState) overLocked(k key, l load, quota protocol.Quota) *protocol.Error {
	if quota == (protocol.Quota{}) || l == (load{}) {
		return nil
	}
	var used load
	if sum := w.tenants.sums[k.Tenant]; sum != nil {
		used = sum.load
	}
	used.add(w.tenants.of[k].load, -1)
	return overQuota(k.Tenant, used, l, quota)
}

// overQuota returns an error if a limit of a tenant's quota leaves no room for the load l in addition to the load used.
// The error names the limit.
func overQuota(tenant string, used, l load, quota protocol.Quota) *protocol.Error {
	cores := func(nano int64) string { return fmt.Sprintf("%g", float64(nano)/1e9) }
	bytes := func(n int64) string { return protocol.Bytes(n).String() }
	for _, limit := range []struct {
		name, reason     string
		limit, used, add int64
		text             func(int64) string
	}{
		{"sandboxes", protocol.ReasonQuotaSandboxes, int64(quota.Sandboxes), int64(used.sandboxes), int64(l.sandboxes),
			func(n int64) string { return fmt.Sprint(n) }},
		{"cpu", protocol.ReasonQuotaCPU, int64(quota.CPU*1e9 + 0.5), used.nanoCPU, l.nanoCPU, cores},
		{"memory", protocol.ReasonQuotaMemory, int64(quota.Memory), int64(used.mem), int64(l.mem), bytes},
		{"disk", protocol.ReasonQuotaDisk, int64(quota.Disk), int64(used.disk), int64(l.disk), bytes},
	} {
		if limit.limit > 0 && limit.add > 0 && limit.used > math.MaxInt64-limit.add || limit.limit > 0 &&
			limit.add > 0 && limit.used+limit.add > limit.limit {
			return quotaError(limit.reason, tenant, limit.name, limit.text(limit.limit), limit.text(limit.used),
				limit.text(limit.add))
		}
	}
	return nil
}

// quotaError says that a limit of a quota leaves no room.
func quotaError(reason, tenant, name, limit, used, add string) *protocol.Error {
	e := protocol.Errorf(protocol.ResourceExhausted, reason,
		"the quota of tenant %s allows %s %s; %s in use, and this needs %s more: %s, or ask an operator to raise the quota",
		tenant, name, limit, used, add, freeing[name])
	return e
}

// freeing says how a user makes room within each limit.
var freeing = map[string]string{
	"sandboxes": "delete a sandbox",
	"cpu":       "stop or delete a sandbox",
	"memory":    "stop or delete a sandbox",
	"disk":      "stop or delete a sandbox",
	"execs":     "wait until an exec ends, or cancel one",
	"waiting":   "wait until a sandbox gets a host, or delete one that waits",
	"uploads":   "wait until uploads expire",
}

// used returns what a tenant uses, from memory.
func (t *tenantShares) used(tenant string) protocol.TenantUse {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := share{}
	if sum := t.sums[tenant]; sum != nil {
		s = *sum
	}
	return protocol.TenantUse{
		Sandboxes: s.sandboxes, Execs: s.execs, Waiting: s.waiting,
		CPU: float64(s.nanoCPU) / 1e9, Memory: s.mem, Disk: s.disk,
	}
}

// over returns an error if a limit of a quota leaves no room for a waiting sandbox. The error names the limit.
func (w *workingState) over(k key, l load, quota protocol.Quota) *protocol.Error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.overLocked(k, l, quota)
}

// addTenants adds the tenants that use something to names.
func (t *tenantShares) addTenants(names map[string]struct{}) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for tenant := range t.sums {
		names[tenant] = struct{}{}
	}
}
