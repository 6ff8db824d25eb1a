package jetstream

import (
	"context"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// NATS gives one error for two causes: no coordinator runs, or those that run are of an earlier version that lacks the
// endpoint. A missing answer therefore proves nothing. The client decides by the version in a coordinator's own answer.

// servedByAll are the endpoints that coordinators of every version serve. If one of them has no answer, no coordinator
// runs.
var servedByAll = []string{
	protocol.EndpointPing, protocol.EndpointGet, protocol.EndpointList, protocol.EndpointExec, protocol.EndpointExecs,
	protocol.EndpointExplain, protocol.EndpointHosts, protocol.EndpointDefaults, protocol.EndpointAwaited,
}

// servedUnlisted are all endpoints that coordinators may serve whose ping does not list them.
var servedUnlisted = append(slices.Clone(servedByAll),
	protocol.EndpointEvents, protocol.EndpointOutput, protocol.EndpointResolve, protocol.EndpointBatches,
	protocol.EndpointChunks, protocol.EndpointMessages, protocol.EndpointWriters, protocol.EndpointUploaded,
	protocol.EndpointTenant, protocol.EndpointTenants, protocol.EndpointCheckup,
)

// notServed returns an error if coordinators answer and say that they do not serve the endpoint, because they are too
// old. Otherwise it returns nil.
func (r *Queries) notServed(ctx context.Context, tenant, endpoint string) *protocol.Error {
	if slices.Contains(servedByAll, endpoint) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	reply, err := r.Query(ctx, tenant, protocol.EndpointPing, &protocol.Query{})
	if err != nil || reply.Ping == nil {
		return nil
	}
	served := reply.Ping.Endpoints
	if len(served) == 0 { // a coordinator of an earlier version
		served = r.servedByEarlier(ctx)
	}
	if slices.Contains(served, endpoint) {
		return nil // the coordinator is starting or ending
	}
	return protocol.NotServed(endpoint, reply.Ping.Coordinator, reply.Ping.Version)
}

// servedByEarlier returns the endpoints that coordinators serve whose ping does not list them. A client that may not
// ask the coordinators for their descriptions gets all endpoints that such coordinators may serve.
func (r *Queries) servedByEarlier(ctx context.Context) (served []string) {
	infos, err := r.describe(ctx)
	for _, info := range infos {
		for _, e := range info.Endpoints {
			served = append(served, e.Name)
		}
	}
	if err != nil || len(served) == 0 {
		return servedUnlisted
	}
	return served
}
