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

// hostTable is the table of hosts as creates are compared with it before anything is taken for them. It is read again
// when something of a host changed, and otherwise once a Scan.
type hostTable struct {
	mu      sync.Mutex
	version uint64
	looked  time.Time
	hosts   []*protocol.Host
	most    placement.Limits
}

// refuseBeforehand says why a sandbox could never be: an image that is none, or more than any host gives. It says so
// of hosts only where all of them are known, also one that has registered just now. What it lets pass may still be
// refused later.
func (c *coordinator) refuseBeforehand(ctx context.Context, k key, whole *protocol.SandboxSpec, builtIn []string) error {
	if _, err := imageref.Full("spec.image", whole.Image); err != nil {
		return err
	}
	names, _ := whole.Services()
	for _, name := range names {
		v, _ := whole.Service(name)
		if _, err := imageref.Full(whole.ServiceField(name)+".image", v.Image); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(c.hostsRead, func(s signal) bool { return !s.isGiven() }) {
		return nil
	}
	b := &protocol.Sandbox{Tenant: k.Tenant, ID: k.ID, Spec: *whole, BuiltIn: builtIn, State: protocol.StatePending}
	if c.onNoHost(b) == nil || !c.knowsAllHosts(ctx) {
		return nil
	}
	if why := c.onNoHost(b); why != nil {
		return why
	}
	return nil
}

// onNoHost says why a sandbox can be on none of the hosts that this coordinator knows; nil: it can, or nobody knows.
func (c *coordinator) onNoHost(b *protocol.Sandbox) *protocol.Error {
	hosts, most := c.hostTable.now(c)
	if slices.ContainsFunc(hosts, func(h *protocol.Host) bool {
		return placement.CouldTake(b, h, most)
	}) {
		return nil
	}
	return placement.Impossible(b, hosts)
}

// hostsWithin is how long a create that no known host could take waits until all hosts are known.
const hostsWithin = time.Second

// knowsAllHosts waits until this coordinator has heard each change of the table of hosts that was made by now.
func (c *coordinator) knowsAllHosts(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, hostsWithin)
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
	if c.hosts.changedSince(t.version) || time.Since(t.looked) > c.cfg.Timing.Scan {
		rows, version := c.hosts.rows()
		t.hosts, t.version, t.looked = placement.HostsOf(rows), version, time.Now()
		t.most = placement.LimitsOf(t.hosts)
	}
	return t.hosts, t.most
}
