package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Raw is the layer below the client: requests, queries and batches as they travel on the wire, in the types of packages
// protocol and jetstream. Programs that drive sandboxes do not need it; tools and tests of the protocol do.
type Raw struct{ client *Client }

// Raw returns the layer below the client. It shares the client's connection and tenant.
func (c *Client) Raw() *Raw { return &Raw{c} }

// Conn returns the client's connection. The client closes it unless [Options.Conn] provided it.
func (r *Raw) Conn() *jetstream.Conn { return r.client.conn }

// Request is a request as it is sent to the queue.
type Request struct {
	Verb    string           // such as [protocol.VerbCreate]
	Sandbox string           // the sandbox's id or, except for a create, its name
	ID      string           // of the request; empty: a new one
	Payload protocol.Request // Submit sets its version

	after uint64 // record of the history that precedes the request's effect; 0: not known
}

// Submit sends a request and waits for its answer. Without an answer it sends the request again with the same id; if
// only the answer was lost, it reads what the request did. When ctx ends first the outcome is open: submitting again
// with the same ID reveals it. Without a deadline Submit gives up after [RequestTries] times the request timeout with
// deadline_exceeded. If the fleet said why it has not decided the request, the error has that reason, such as log_full;
// the request is stored and will be decided. While the fleet reports that its log is full, new creates and execs fail
// at once with resource_exhausted and reason log_full.
//
// Submit does not validate the payload; the coordinator does. Errors name the fields of specs below "spec", as
// everywhere in this package.
func (r *Raw) Submit(ctx context.Context, request Request) (*protocol.Reply, error) {
	if err := protocol.ValidateID("sandbox", request.Sandbox); err != nil {
		return nil, err
	}
	if request.ID == "" {
		request.ID = NewID()
	} else if err := protocol.ValidateID("request", request.ID); err != nil {
		return nil, err
	}
	return r.client.ask(ctx, request, submitBounded)
}

// Query asks an endpoint of the read service, such as [protocol.EndpointGet], once. Errors: those of the endpoint;
// unavailable if no coordinator is running.
func (r *Raw) Query(ctx context.Context, endpoint string, q protocol.Query) (*protocol.Reply, error) {
	return r.client.query(ctx, endpoint, q)
}

// History reads the batches of a sandbox's history with a record (the stream sequence of their message) greater than
// after; 0 reads all. It is complete up to the moment of the call and empty for an unknown sandbox. The sandbox must be
// given by its id.
func (r *Raw) History(ctx context.Context, sandbox string, after uint64) ([]*protocol.Batch, error) {
	if err := protocol.ValidateID("sandbox", sandbox); err != nil {
		return nil, err
	}
	batches, err := r.client.history(ctx, sandbox, after)
	return batches, failed(ctx, err, "read the history of "+sandbox)
}

// Live calls handle with each batch appended to a sandbox's history from now on, until stop is called. It uses its own
// subscription and replays nothing. Batches are lost while the connection is down, and when a server of a cluster dies
// between storing and publishing one. A gap in the sequence reveals a loss only if another batch follows, so a caller
// that waits for something must also read [Raw.History] from time to time. handle must not block for long. The sandbox
// must be given by its id.
func (r *Raw) Live(sandbox string, handle func(*protocol.Batch)) (stop func(), err error) {
	if err := protocol.ValidateID("sandbox", sandbox); err != nil {
		return nil, err
	}
	return r.client.conn.Live(r.client.tenant, sandbox, handle)
}
