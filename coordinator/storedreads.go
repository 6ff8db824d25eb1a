package coordinator

import (
	"context"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// storedPages are the reads of clients that follow a history or output, at most followersAtOnce at a time.
func (rd *reader) storedPages() map[string]jetstream.Endpoint {
	pages := rd.conn.PageEndpoints()
	return map[string]jetstream.Endpoint{
		protocol.EndpointBatches: uses(rd.inTurn(pages[protocol.EndpointBatches]), "sandbox", "after", "from", "newest"),
		protocol.EndpointChunks:  uses(rd.inTurn(pages[protocol.EndpointChunks]), "sandbox", "exec?", "service", "after"),

		protocol.EndpointUploaded: uses(pages[protocol.EndpointUploaded], "digest"),
	}
}

// inTurn lets an endpoint wait for a slot.
func (rd *reader) inTurn(endpoint jetstream.Endpoint) jetstream.Endpoint {
	return func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
		release, err := rd.following.take(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
		return endpoint(ctx, tenant, q)
	}
}
