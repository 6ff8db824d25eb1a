package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Raw is the layer below the client: requests, queries and batches in the form that travels over NATS, in the types of
// packages protocol and jetstream. Programs that drive sandboxes do not need it; tools and tests of the protocol do.
type Raw struct{ client *Client }

// Raw returns the layer below the client. It uses the client's connection and tenant.
func (c *Client) Raw() *Raw { return &Raw{c} }

// Conn returns the client's connection. The client closes it unless [Options.Conn] provided it.
func (r *Raw) Conn() *jetstream.Conn { return r.client.conn }

// Request is a request as it is sent to the queue.
type Request struct {
	Verb    string           // such as [protocol.VerbCreate]
	Sandbox string           // the sandbox's id or, except for a create, its name
	ID      string           // id of the request; empty: a new id
	Payload protocol.Request // Submit sets its version

	after uint64 // the request's effect comes after this record of the history; 0: not known
}

// Submit sends a request and waits for its answer. If no answer arrives, Submit sends the request again with the same
// id. If only the answer was lost, it reads the effect of the request. If ctx ends first, the request may still be
// carried out; to learn whether it was, submit it again with the same ID.
//
// Without a deadline Submit gives up with deadline_exceeded after [RequestTries] times the request timeout. The error
// has a reason, such as log_full, if the fleet said why it has not decided the request yet; the stored request will be
// decided later. While the fleet reports that its log is full, new creates and execs fail at once with
// resource_exhausted and reason log_full. A request that is not accepted because the queue is full is sent again, after
// pauses of 250 ms to 10 s. If Submit gives up then, the error has the reason queue_full; without a deadline its code
// is resource_exhausted.
//
// Submit does not validate the payload; the coordinator does. As everywhere in this package, an error names a field of
// the spec as spec.FIELD.
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

// Query asks an endpoint of the read service, such as [protocol.EndpointGet], once. Errors: the errors of the endpoint;
// invalid_argument naming the field endpoint if no running coordinator serves the endpoint; unavailable if no
// coordinator is running.
func (r *Raw) Query(ctx context.Context, endpoint string, q protocol.Query) (*protocol.Reply, error) {
	if err := protocol.ValidateID("endpoint", endpoint); err != nil {
		return nil, err
	}
	reply, err := r.client.query(ctx, endpoint, q)
	if protocol.IsNotServed(err) {
		return nil, protocol.Invalid("endpoint", "the coordinators serve no endpoint %s", endpoint)
	}
	if protocol.CodeOf(err) != protocol.Unavailable || ctx.Err() != nil {
		return reply, err
	}
	// NATS gives the same error for an unknown endpoint and for missing coordinators. If a ping is answered, query
	// again: a coordinator may have started in between.
	if _, pingErr := r.client.Ping(ctx); pingErr != nil {
		return nil, err
	}
	if reply, err = r.client.query(ctx, endpoint, q); protocol.CodeOf(err) == protocol.Unavailable {
		return nil, protocol.Invalid("endpoint", "the coordinators serve no endpoint %s", endpoint)
	}
	return reply, err
}

// History reads the batches of a sandbox's history that come after a record. A record is the stream sequence of a
// batch's message; 0 reads all batches. sandbox is an id or a name. The result is complete up to the moment of the
// call, and empty for an unknown sandbox. Errors: unavailable if no coordinator is running.
func (r *Raw) History(ctx context.Context, sandbox string, after uint64) ([]*protocol.Batch, error) {
	if err := protocol.ValidateID("sandbox", sandbox); err != nil {
		return nil, err
	}
	batches, err := r.client.history(ctx, sandbox, after)
	if err == nil && len(batches) == 0 && !protocol.IsGeneratedID(sandbox) {
		if info, unknown := r.client.resolve(ctx, sandbox); unknown == nil && info.ID != sandbox {
			batches, err = r.client.history(ctx, info.ID, after)
		}
	}
	return batches, failed(ctx, err, "read the history of "+sandbox)
}

// Live calls handle with each batch appended to a sandbox's history from now on, until stop is called. It uses its own
// subscription and delivers no earlier batches. Batches are lost while the connection is down, and when a server of a
// cluster dies after storing a batch and before publishing it. A gap in the sequence shows a loss only when another
// batch follows. A caller that waits for something must therefore also read [Raw.History] from time to time. If the
// client does not know the writer of a batch, it delivers the batch after a coordinator has confirmed it. A batch that
// no coordinator confirms is lost. handle must not block for long. sandbox must be an id: for a name no batches arrive.
func (r *Raw) Live(sandbox string, handle func(*protocol.Batch)) (stop func(), err error) {
	if err := protocol.ValidateID("sandbox", sandbox); err != nil {
		return nil, err
	}
	v := newVerifier(r.client.writers)
	return r.client.conn.Live(r.client.tenant, sandbox, func(b *protocol.Batch) {
		if b = r.client.confirmed(&v, b); b != nil {
			v.accept(b)
			handle(b)
		}
	})
}

// confirmed returns a live batch if it is part of the history. If the client cannot tell, it asks a coordinator.
func (c *Client) confirmed(v *verifier, b *protocol.Batch) *protocol.Batch {
	c.refreshRules()
	if v.believes(b, false) {
		return b
	}
	if b.Record == 0 {
		return nil
	}
	v.doubts(b)
	ctx, cancel := context.WithTimeout(c.ctx, c.requestTimeout)
	defer cancel()
	stored, err := c.reads.AtRecord(ctx, b.Sandbox, b.Record)
	if err != nil || stored.ID != b.ID {
		return nil
	}
	_ = c.writers.learn(ctx, v.unknownKeys([]*protocol.Batch{stored})) // on failure, a coordinator confirms the next batch
	return stored
}
