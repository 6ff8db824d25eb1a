package sdk

import (
	"context"
	"iter"

	"github.com/boxfleet/boxfleet/protocol"
)

// TenantInfo holds the quota of a tenant, the use of the quota, and the sandboxes that wait because of the quota.
type TenantInfo = protocol.Tenant

// Quota limits what a tenant may use; 0 means no limit.
type Quota = protocol.Quota

// TenantUse says how much a tenant uses now.
type TenantUse = protocol.TenantUse

// HeldSandbox is a sandbox that waits because its tenant's quota has no room for it.
type HeldSandbox = protocol.HeldSandbox

// TenantInfo reads the quota of the client's tenant and how much the tenant uses. A coordinator answers from memory.
// The size of stored output was measured at most about 15 s before. TenantInfo does not retry. Errors: unavailable if
// no coordinator is running.
func (c *Client) TenantInfo(ctx context.Context) (*TenantInfo, error) {
	reply, err := c.query(ctx, protocol.EndpointTenant, protocol.Query{})
	if err != nil {
		return nil, err
	}
	if reply.Tenant == nil {
		return nil, protocol.Errorf(protocol.Unavailable, "", "the coordinator sent no tenant; try again")
	}
	return reply.Tenant, nil
}

// Tenants reads all tenants that have a quota of their own, use something, or still have a stored history, sorted by
// name. It fetches each page when the caller's loop needs it. A tenant that appears or disappears during the reading
// may or may not be listed. Only operators and fleet viewers may call it. The sequence ends after the first error.
// Errors: permission_denied for a user of a tenant; unavailable if no coordinator is running.
func (c *Client) Tenants(ctx context.Context) iter.Seq2[*TenantInfo, error] {
	return pages("", func(page string) (*Page[*TenantInfo], error) {
		reply, err := c.query(ctx, protocol.EndpointTenants, protocol.Query{Page: page})
		if err != nil {
			return nil, err
		}
		return &Page[*TenantInfo]{Items: reply.Tenants, Next: reply.Next}, nil
	})
}
