package coordinator

import (
	"context"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// byName wraps endpoints so that queries may give a sandbox's name instead of its id. It adds the endpoint that also
// accepts a prefix of an id.
func (rd *reader) byName(endpoints map[string]jetstream.Endpoint) map[string]jetstream.Endpoint {
	all := make(map[string]jetstream.Endpoint, len(endpoints)+1)
	for name, read := range endpoints {
		all[name] = func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
			asked := q.Sandbox
			if q.Sandbox != "" && protocol.ValidateID("tenant", tenant) == nil {
				hold, err := rd.names.nameHold(ctx, key{Tenant: tenant, ID: q.Sandbox})
				if err != nil {
					return nil, err
				}
				if hold != nil {
					q.Sandbox = hold.Sandbox
				}
			}
			reply, err := read(ctx, tenant, q)
			return reply, withMissing(err, asked, q.Exec)
		}
	}
	get := all[protocol.EndpointGet]
	all[protocol.EndpointResolve] = uses(func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply,
		error) {
		reply, err := get(ctx, tenant, &protocol.Query{Version: q.Version, Sandbox: q.Sandbox})
		if protocol.CodeOf(err) != protocol.NotFound || !protocol.IsIDPrefix(q.Sandbox) {
			return reply, err
		}
		id, err := rd.projection.read.withPrefix(tenant, q.Sandbox)
		if err != nil {
			return nil, withMissing(err, q.Sandbox, "")
		}
		return get(ctx, tenant, &protocol.Query{Version: q.Version, Sandbox: id})
	}, "sandbox")
	return all
}
