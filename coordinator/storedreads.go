package coordinator

import (
	"context"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// storedPages returns the endpoints for clients that follow a history or output. At most followersAtOnce reads of these
// clients run at a time, and the tenants share these slots.
func (rd *reader) storedPages() map[string]jetstream.Endpoint {
	pages := rd.conn.PageEndpoints(rd.outputHosts)
	return map[string]jetstream.Endpoint{
		protocol.EndpointBatches:  uses(rd.inTurn(pages[protocol.EndpointBatches]), "sandbox", "after", "from", "newest"),
		protocol.EndpointChunks:   uses(rd.inTurn(pages[protocol.EndpointChunks]), "sandbox", "exec?", "service", "after"),
		protocol.EndpointMessages: uses(rd.inTurn(pages[protocol.EndpointMessages]), "sandbox", "after"),

		protocol.EndpointWriters:  uses(pages[protocol.EndpointWriters], "keys"),
		protocol.EndpointUploaded: uses(pages[protocol.EndpointUploaded], "digest"),
	}
}

// inTurn makes an endpoint wait for a slot. It ends a read after readWithin: soon after that, the client gives up the
// attempt and asks again. If the endpoint has read a part of its page by then, it returns that part.
func (rd *reader) inTurn(endpoint jetstream.Endpoint) jetstream.Endpoint {
	return func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
		release, err := rd.following.take(ctx, tenant)
		if err != nil {
			return nil, err
		}
		defer release()
		within, cancel := context.WithTimeout(ctx, readWithin)
		defer cancel()
		reply, err := endpoint(within, tenant, q)
		if err != nil && within.Err() != nil && ctx.Err() == nil {
			return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
				"the read did not end within %s: NATS is slow, or other reads keep it busy: try again later", readWithin)
		}
		return reply, err
	}
}

// outputHosts returns the hosts whose workers may publish output of a sandbox.
func (rd *reader) outputHosts(ctx context.Context, tenant, sandbox string) ([]protocol.OutputHost, error) {
	j, err := rd.projection.findFresh(ctx, key{Tenant: tenant, ID: sandbox}, 0)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return outputOf(j, key{}, "").Hosts, nil
}

// outputOf names one output of a sandbox, and the hosts that may publish it.
func outputOf(j *jetstream.Journal, k key, log string) jetstream.OutputOf {
	of := jetstream.OutputOf{Tenant: k.Tenant, Sandbox: k.ID, Log: log}
	j.View(func(s *protocol.State, _ uint64) { of.Hosts = s.OutputHosts() })
	return of
}
