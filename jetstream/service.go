package jetstream

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/boxfleet/boxfleet/protocol"
)

// Endpoint answers a query of the read service.
type Endpoint func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error)

// ServeReads runs the read service until ctx ends. Several coordinators serve at once; each query
// goes to one of them. serving is called once queries are heard; it may be nil.
func (c *Conn) ServeReads(ctx context.Context, version string, endpoints map[string]Endpoint, serving func()) error {
	service, err := micro.AddService(c.nc, micro.Config{
		Name: protocol.ServiceName, Version: version, Description: "Boxfleet: reads",
	})
	if err != nil {
		return translate(err, "serve reads")
	}
	for name, endpoint := range endpoints {
		handler := micro.HandlerFunc(func(r micro.Request) { go c.answer(ctx, r, endpoint) })
		if err := service.AddEndpoint(name, handler, micro.WithEndpointSubject(protocol.APISubject("*", name))); err != nil {
			_ = service.Stop() // the first error counts
			return translate(err, "serve "+name)
		}
	}
	if err := c.Flush(ctx); err != nil && ctx.Err() == nil {
		_ = service.Stop() // the first error counts
		return err
	}
	if serving != nil {
		serving()
	}
	<-ctx.Done()
	if err := service.Stop(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		c.log.Warn("stop the read service", "error", err)
	}
	return ctx.Err()
}

func (c *Conn) answer(ctx context.Context, r micro.Request, endpoint Endpoint) {
	contentType := r.Headers().Get(protocol.HeaderContentType)
	q := &protocol.Query{}
	err := protocol.DecodeStrict(contentType, r.Data(), q)
	if err == nil {
		err = protocol.CheckVersion(q.Version)
	}
	reply := &protocol.Reply{}
	if err == nil {
		reply, err = endpoint(ctx, tenantOf(r.Subject()), q)
	}
	if err != nil {
		reply = &protocol.Reply{Error: protocol.AsError(err)}
	}
	reply.Version = protocol.Version
	if contentType != protocol.ContentJSON {
		contentType = protocol.ContentMsgpack
	}
	headers := micro.Headers{protocol.HeaderContentType: []string{contentType}}
	data := protocol.EncodeAs(contentType, reply)
	if int64(len(data)) > c.nc.MaxPayload()-headerRoom {
		reply = &protocol.Reply{Version: protocol.Version, Error: protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge,
			"the answer has %d bytes, more than a message may have: ask for a smaller limit", len(data))}
		data = protocol.EncodeAs(contentType, reply)
	}
	if reply.Error != nil {
		err = r.Error(string(reply.Error.Code), reply.Error.Error(), data, micro.WithHeaders(headers))
	} else {
		err = r.Respond(data, micro.WithHeaders(headers))
	}
	if err != nil {
		c.log.Warn("an answer is not sent", "subject", r.Subject(), "error", err)
	}
}

// headerRoom is what the headers of an answer have at most.
const headerRoom = 4 << 10

// tenantOf is the token after "boxfleet.v1.api.": permissions vouch for it.
func tenantOf(subject string) string {
	parts := strings.Split(subject, ".")
	return parts[len(parts)-2]
}

// Query asks the read service. Errors: the service's own; unavailable where no coordinator runs.
func (c *Conn) Query(ctx context.Context, tenant, endpoint string, q *protocol.Query) (*protocol.Reply, error) {
	q.Version = protocol.Version
	m := nats.NewMsg(protocol.APISubject(tenant, endpoint))
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	m.Data = protocol.Encode(q)
	ctx, done := c.whileQuorum(ctx)
	defer done()
	answer, err := c.ask(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, protocol.Errorf(protocol.Unavailable, "", "no coordinator answers")
	}
	if err != nil {
		return nil, c.orNoQuorum(translate(causeOf(ctx, err), "ask for "+endpoint))
	}
	reply := &protocol.Reply{}
	if err := protocol.DecodeAs(answer.Header.Get(protocol.HeaderContentType), answer.Data, reply); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return reply, nil
}
