package coordinator

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

// hostTable caches the table of hosts for refuseImpossible. It reads the table again if a host has changed since the
// last read, or if that read was more than Timing.Scan ago.
type hostTable struct {
	mu      sync.Mutex
	version uint64
	read    time.Time
	hosts   []*protocol.Host
	most    placement.Limits
}

// refuseImpossible returns why a sandbox could never be created: its image reference is invalid, or no host could ever
// take it. It is called before the create takes a name and an id. It refuses a sandbox for lack of a host only after
// this coordinator has read every change of the table of hosts. A sandbox that is not refused here may still be refused
// later.
func (c *coordinator) refuseImpossible(
	ctx context.Context, k key, full *protocol.SandboxSpec, defaulted []string,
) error {
	if _, err := imageref.Full("spec.image", full.Image); err != nil {
		return err
	}
	names, _ := full.Services()
	for _, name := range names {
		v, _ := full.Service(name)
		if _, err := imageref.Full(full.ServiceField(name)+".image", v.Image); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(c.hostsRead, func(s signal) bool { return !s.isGiven() }) {
		return nil
	}
	b := &protocol.Sandbox{Tenant: k.Tenant, ID: k.ID, Spec: *full, Defaulted: defaulted, State: protocol.StatePending}
	if why := c.neverFits(b); why != nil {
		return why
	}
	if c.impossibleOnHosts(b) == nil || !c.knowsAllHosts(ctx) {
		return nil
	}
	if why := c.impossibleOnHosts(b); why != nil {
		return why
	}
	return nil
}

// impossibleOnHosts returns why none of the known hosts could take a sandbox, or nil if one of them could.
func (c *coordinator) impossibleOnHosts(b *protocol.Sandbox) *protocol.Error {
	hosts, most := c.hostTable.now(c)
	if slices.ContainsFunc(hosts, func(h *protocol.Host) bool {
		return placement.CouldTake(b, h, most)
	}) {
		return nil
	}
	return placement.Impossible(b, hosts)
}

// If no known host could take a sandbox, its create waits for at most knowHostsWithin until this coordinator knows all
// hosts.
const knowHostsWithin = time.Second

// knowsAllHosts waits until this coordinator has read all changes that the table of hosts has had so far. It returns
// false if the wait takes longer than knowHostsWithin.
func (c *coordinator) knowsAllHosts(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, knowHostsWithin)
	defer cancel()
	newest, err := c.conn.HostsRevision(ctx)
	for err == nil && c.hosts.read.Load() < newest {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return err == nil
}

func (t *hostTable) now(c *coordinator) ([]*protocol.Host, placement.Limits) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.hosts.changedSince(t.version) || time.Since(t.read) > c.cfg.Timing.Scan {
		rows, version := c.hosts.rows()
		t.hosts, t.version, t.read = placement.HostsOf(rows), version, time.Now()
		t.most = placement.LimitsOf(t.hosts)
	}
	return t.hosts, t.most
}
