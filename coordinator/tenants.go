package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// tenant returns the quota and the use of a tenant. waiting returns the sandboxes that wait for a host, by tenant.
func (c *coordinator) tenant(tenant string, waiting func() map[string][]*protocol.Sandbox) *protocol.Tenant {
	t := &protocol.Tenant{Tenant: tenant, Quota: c.quota(tenant), Used: c.projection.work.tenants.used(tenant)}
	if k := c.output.Load(); k != nil {
		t.Used.Output = k.of(tenant)
	}
	if a := c.admitter.Load(); a != nil && a.uploads.known() {
		n := a.uploads.of(tenant, "", c.conn.Now())
		t.Used.Uploads = &n
	}
	if t.Quota == (protocol.Quota{}) || t.Used.Waiting == 0 {
		return t
	}
	for _, b := range waiting()[tenant] {
		if why := c.heldBy(b); why != nil {
			t.Held = append(t.Held, protocol.HeldSandbox{Sandbox: b.ID, Name: b.Name, Why: why})
		}
		if len(t.Held) == protocol.MaxHeld {
			break
		}
	}
	return t
}

// waitingByTenant returns the sandboxes that wait for a host, by tenant, the oldest first.
func (c *coordinator) waitingByTenant() map[string][]*protocol.Sandbox {
	by := map[string][]*protocol.Sandbox{}
	for _, b := range c.projection.work.waitingForHost(nil, false) {
		by[b.Tenant] = append(by[b.Tenant], b)
	}
	return by
}

// tenants returns a page of the tenants that have a quota of their own, use something, or have a stored history, by
// name. Error: unavailable until the stored histories of deleted sandboxes are known.
func (c *coordinator) tenants(q *protocol.Query) (page []*protocol.Tenant, next string, err error) {
	if !c.projection.read.deletedRead.isGiven() {
		return nil, "", errStillReadingDeleted()
	}
	names := c.projection.read.tenantNames()
	c.projection.work.tenants.addTenants(names)
	for tenant := range c.allQuotas() {
		names[tenant] = struct{}{}
	}
	if k := c.output.Load(); k != nil {
		k.tenants(names)
	}
	delete(names, spec.EveryTenant)
	_, after, _ := strings.Cut(q.Page, ".")
	maps.DeleteFunc(names, func(tenant string, _ struct{}) bool { return tenant <= after }) // cheaper than to sort them
	rows, waiting := map[string]*protocol.Tenant{}, sync.OnceValue(c.waitingByTenant)
	size := func(tenant string) int {
		rows[tenant] = c.tenant(tenant, waiting)
		return encoded(rows[tenant])
	}
	found, next, err := paginate(slices.Collect(maps.Keys(names)), strings.Compare, tenantToken, size, q)
	for _, tenant := range found {
		page = append(page, rows[tenant])
	}
	return page, next, err
}

func tenantToken(tenant string) string { return fmt.Sprintf("%020d.%s", 0, tenant) }

// readTenant answers with the quota and the use of a tenant. Only the leader knows the sizes of stored output and
// uploads. If no leader answers, readTenant leaves them out.
func (rd *reader) readTenant(ctx context.Context, tenant string, _ *protocol.Query) (*protocol.Reply, error) {
	release, err := rd.reporting.take(ctx, tenant)
	if err != nil {
		return nil, err
	}
	defer release()
	if rd.admitter.Load() == nil {
		reply, err := rd.conn.AskLeader(ctx, &protocol.LeaderQuery{Tenant: tenant})
		if err == nil && len(reply.Tenants) == 1 {
			return &protocol.Reply{Tenant: reply.Tenants[0]}, nil
		}
	}
	return &protocol.Reply{Tenant: rd.tenant(tenant, rd.waitingByTenant)}, nil
}

// listTenants answers with a page of all tenants. A user or viewer of one tenant must not see other tenants.
func (rd *reader) listTenants(ctx context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
	if user := jetstream.UserOf(ctx); user != "" && !strings.HasPrefix(user, "@") {
		return nil, protocol.Errorf(protocol.PermissionDenied, "",
			"only operators and fleet viewers may list tenants; ask for your own tenant instead")
	}
	if !await(ctx, rd.projection.read.deletedRead) {
		return nil, errStillReadingDeleted()
	}
	if rd.admitter.Load() == nil {
		reply, err := rd.conn.AskLeader(ctx, &protocol.LeaderQuery{Tenants: true, Limit: q.Limit, Page: q.Page})
		if err == nil {
			return theLeadersPage(reply, q)
		}
	}
	page, next, err := rd.tenants(q)
	return &protocol.Reply{Tenants: page, Next: next}, err
}

// theLeadersPage takes the page that a query asks for from the leader's answer. A leader of an earlier version answers
// with all tenants.
func theLeadersPage(r *protocol.LeaderReply, q *protocol.Query) (*protocol.Reply, error) {
	order := func(a, b *protocol.Tenant) int { return strings.Compare(a.Tenant, b.Tenant) }
	token := func(t *protocol.Tenant) string { return tenantToken(t.Tenant) }
	page, next, err := paginate(r.Tenants, order, token, encoded, q)
	if next == "" {
		next = r.Next
	}
	return &protocol.Reply{Tenants: page, Next: next}, err
}
