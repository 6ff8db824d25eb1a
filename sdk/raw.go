package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// The lower layer: requests, reads and batches as they are on the wire. The rest of the package is
// built on it.

// Request is a request as it goes to the queue.
type Request struct {
	Verb    string // protocol.VerbCreate and so on
	Sandbox string
	ID      string // of the request; empty: a new one
	Payload protocol.Request

	after uint64 // record of the history that comes before what the request does; 0: not known
}

// Submit sends a request and waits for its answer. The request is sent again with the same id when
// no answer comes; what it did is looked up where the answer was lost. When ctx ends first, the
// outcome is open: asking again with the same ID tells it. With a ctx that has no deadline it
// gives up after [RequestTries] times the request timeout, with deadline_exceeded. Where the fleet said
// why it does not decide the request, the error has that reason, such as log_full; the request is
// stored, and will be decided. A new create or exec is refused with resource_exhausted and log_full
// while the fleet says that its log is full.
//
// Nothing is checked here: what the payload says is for the coordinator to refuse. The error names fields of specs
// below "spec", as everywhere in this package.
func (c *Client) Submit(ctx context.Context, r Request) (*protocol.Reply, error) {
	if err := protocol.ValidateID("sandbox", r.Sandbox); err != nil {
		return nil, err
	}
	if r.ID == "" {
		r.ID = NewID()
	} else if err := protocol.ValidateID("request", r.ID); err != nil {
		return nil, err
	}
	return c.ask(ctx, r, submitBounded)
}

// Query asks an endpoint of the read service: protocol.EndpointGet and so on. Errors: the
// endpoint's own; unavailable where no coordinator runs.
func (c *Client) Query(ctx context.Context, endpoint string, q protocol.Query) (*protocol.Reply, error) {
	reply, err := c.conn.Query(ctx, c.tenant, endpoint, &q)
	return reply, failed(ctx, err, "ask for "+endpoint)
}

// History reads the batches of a sandbox's history whose record, the stream sequence of the
// message, is greater than after. 0 reads all. It is complete up to the moment of the call, and
// empty where there is nothing.
func (c *Client) History(ctx context.Context, sandbox string, after uint64) ([]*protocol.Batch, error) {
	if err := protocol.ValidateID("sandbox", sandbox); err != nil {
		return nil, err
	}
	batches, err := c.history(ctx, sandbox, after)
	return batches, failed(ctx, err, "read the history of "+sandbox)
}

// history reads in bulk first, from any replica, and then what that one did not have yet.
func (c *Client) history(ctx context.Context, sandbox string, after uint64) ([]*protocol.Batch, error) {
	batches, err := c.conn.History(ctx, c.tenant, sandbox, after)
	if err != nil {
		return nil, err
	}
	if n := len(batches); n > 0 {
		after = batches[n-1].Record
	}
	tail, err := c.conn.HistoryTail(ctx, c.tenant, sandbox, after)
	return append(batches, tail...), err
}

// Live hears the batches that are appended to a sandbox's history from now on, on a subscription
// of its own, until stop is called. Nothing is replayed, and batches are missed while the
// connection is away, and where a server of a cluster dies between storing and telling: a number
// that does not follow tells, or nothing does, and [Client.History] has what is missing. Who waits
// for something reads it from time to time. handle must not block for long.
func (c *Client) Live(sandbox string, handle func(*protocol.Batch)) (stop func(), err error) {
	if err := protocol.ValidateID("sandbox", sandbox); err != nil {
		return nil, err
	}
	return c.conn.Live(c.tenant, sandbox, handle)
}
