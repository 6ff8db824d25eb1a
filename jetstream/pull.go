package jetstream

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// puller requests the messages of a consumer. It does not use the client's own iterator, which takes a stored message
// for a status of the server if the message has no payload and a header Status. A publisher could then hide messages
// and end readers. A puller tells messages and statuses apart by the reply subject, which the server sets: a message of
// the stream has a reply subject for its acknowledgement, and a status has no reply subject.
type puller struct {
	connection *connection
	doing      string // what the caller does, for errors
	subject    string // subject of requests to the consumer
	opening    []byte // the request that is sent, and repeated, until the server says anything
	request    []byte
	batch      int  // messages of one request
	wanted     int  // messages that were requested, and have not arrived
	heard      bool // whether the server has answered a request
	sub        *nats.Subscription
	arrived    chan *nats.Msg
}

// pullHeartbeat is how often the server sends a heartbeat while a request for messages is open. After two missing
// heartbeats, the request is repeated.
const pullHeartbeat = time.Second

// In a cluster, about one in a hundred new consumers loses its first request, because the server that the client is
// connected to does not know the consumer yet. The first request is therefore a small one, with heartbeats that come
// sooner, and it is repeated soon. If the server receives all copies, it delivers a few messages more at once.
const (
	openingBatch     = 32
	openingHeartbeat = pullHeartbeat / 4
	openingExpires   = 2 * pullHeartbeat
)

// pull begins to read a consumer. Each request asks for batch messages, and stays open for the duration in expires. Up
// to twice as many messages may wait in memory. The caller must call stop.
func (c *connection) pull(stream, consumer string, batch int, expires time.Duration) (*puller, error) {
	p := &puller{
		connection: c, doing: "read " + stream, batch: batch,
		subject: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer,
		arrived: make(chan *nats.Msg, 2*batch+64), // with room for statuses in addition to the messages
	}
	p.opening = pullRequest(min(batch, openingBatch), openingExpires, openingHeartbeat)
	p.request = pullRequest(batch, expires, pullHeartbeat)
	var err error
	p.sub, err = c.nc.ChanSubscribe(c.nc.NewInbox(), p.arrived)
	return p, translate(err, p.doing)
}

func pullRequest(batch int, expires, heartbeat time.Duration) []byte {
	return fmt.Appendf(nil, `{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, batch, expires, heartbeat)
}

// stop ends the delivery of messages. Messages that have arrived can still be read from p.arrived.
func (p *puller) stop() { _ = p.sub.Unsubscribe() } // fails only when the connection is closed

// errSilent says that two heartbeats are missing. The puller sends another request when next is called again.
var errSilent = protocol.Errorf(protocol.Unavailable, "", "the server sends no heartbeats")

// next waits for the next message. Errors: the error of ctx; errSilent; unavailable if the consumer does not exist or
// the server cannot answer.
func (p *puller) next(ctx context.Context) (*nats.Msg, error) {
	began := time.Now()
	for {
		if err := p.ask(ctx); err != nil {
			return nil, err
		}
		m, err := p.receive(ctx)
		if err == errSilent && !p.heard && time.Since(began) < 2*pullHeartbeat {
			continue // repeat the first request
		}
		if err != nil {
			return nil, err
		}
		p.heard = true
		if !isStatus(m) {
			p.wanted--
			return m, nil
		}
		status, why := m.Header.Get("Status"), m.Header.Get("Description")
		switch {
		case status == "100": // heartbeat
		case why == "Server Shutdown":
			// No other server can answer yet. The reading ends when the client reconnects or when heartbeats are
			// missing.
		case status == "408": // the request expired
			// If the number is malformed, no further request is sent until heartbeats are missing.
			left, _ := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
			p.wanted = max(p.wanted-left, 0)
		default:
			return nil, protocol.Errorf(protocol.Unavailable, "", "%s: the server answers %s %s", p.doing, status, why)
		}
	}
}

// isStatus reports whether a message for a puller is a status of the server instead of a message of the stream.
func isStatus(m *nats.Msg) bool { return m.Reply == "" }

// ask sends another request if at most half of the messages of a request are still to come.
func (p *puller) ask(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.wanted > p.batch/2 {
		return nil
	}
	request, batch := p.request, p.batch
	if !p.heard {
		request, batch = p.opening, min(p.batch, openingBatch)
	}
	if err := p.connection.nc.PublishRequest(p.subject, p.sub.Subject, request); err != nil {
		return translate(err, p.doing)
	}
	p.wanted += batch
	return nil
}

func (p *puller) receive(ctx context.Context) (*nats.Msg, error) {
	heartbeat := pullHeartbeat
	if !p.heard {
		heartbeat = openingHeartbeat
	}
	silent := time.NewTimer(2 * heartbeat)
	defer silent.Stop()
	select {
	case m := <-p.arrived:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.connection.closed:
		return nil, translate(nats.ErrConnectionClosed, p.doing)
	case <-silent.C:
		p.wanted = 0
		return nil, errSilent
	}
}
