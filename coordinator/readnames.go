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
			if protocol.ValidateID("tenant", tenant) == nil && protocol.ValidateID("sandbox", q.Sandbox) == nil {
				release, err := rd.resolveName(ctx, tenant, q)
				if err != nil {
					return nil, err
				}
				defer release()
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

// resolveName replaces a sandbox's name in a query by the sandbox's id. If memory has neither the id nor the name,
// resolveName and the read ask NATS whether the sandbox exists: another coordinator may just have created it, or its
// history may be purged. Clients can ask for any number of such ids, so these reads need a slot. The caller must call
// release after the read.
func (rd *reader) resolveName(ctx context.Context, tenant string, q *protocol.Query) (release func(), err error) {
	k := key{Tenant: tenant, ID: q.Sandbox}
	if rd.projection.read.knows(k) {
		return func() {}, nil
	}
	release, err = rd.unknown.take(ctx, tenant)
	if err != nil {
		return nil, err
	}
	hold, err := rd.names.nameHold(ctx, k)
	if err != nil {
		release()
		return nil, err
	}
	if hold != nil {
		release()
		q.Sandbox, release = hold.Sandbox, func() {}
	}
	return release, nil
}
