package jetstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// Streams opens streams to workers, and serves those of a worker.
type Streams struct {
	*core

	once  sync.Once
	plain *streamLink // this connection
	bulk  bulkLink
}

// StreamTarget says which sandbox a stream leads to. The description of a sandbox names its worker.
type StreamTarget struct{ Tenant, Worker, Sandbox string }

func (t *StreamTarget) validate() error {
	for _, part := range []struct{ field, id string }{
		{"tenant", t.Tenant}, {"worker", t.Worker}, {"sandbox", t.Sandbox},
	} {
		if err := protocol.ValidateID(part.field, part.id); err != nil {
			return err
		}
	}
	return nil
}

// OpenStream asks a worker for an operation inside a sandbox. It sets the version, the id and the sizes of the request.
// If the request has no timeout, the deadline of ctx is taken. conn is nil if the reply is the whole answer. Otherwise
// the caller must end the stream with [stream.Conn.Close] or [stream.Conn.Reset]. The end of ctx ends only the opening.
//
// The request is sent once. If the worker is killed before it answers, or the answer is lost, OpenStream returns
// unavailable with reason stream_lost a few seconds after a worker serves again. After unavailable with another reason
// than no_worker, deadline_exceeded or cancelled, it is unknown whether the operation was carried out.
//
// Errors: invalid_argument, also without a timeout and a deadline; permission_denied; unavailable with reason no_worker
// if the worker does not run; unavailable; deadline_exceeded; cancelled; resource_exhausted with reason
// too_many_streams; the errors of the operation.
func (s *Streams) OpenStream(ctx context.Context, to StreamTarget, open protocol.StreamOpen) (
	conn *stream.Conn, reply *protocol.StreamReply, err error) {
	if err := to.validate(); err != nil {
		return nil, nil, err
	}
	if deadline, ok := ctx.Deadline(); ok && open.Timeout == 0 {
		left := max(time.Until(deadline), protocol.MinStreamTimeout)
		open.Timeout = protocol.Duration(min(left, protocol.MaxStreamTimeout))
	}
	link, err := s.linkFor(ctx, open.Bulk)
	if err != nil {
		return nil, nil, err
	}
	open.Version, open.ID = protocol.Version, rand.Text()
	cfg := streamConfig(link, open.Bulk)
	open.Window, open.Frame = cfg.Window, cfg.TakeFrame
	if err := open.Validate(); err != nil {
		return nil, nil, err
	}
	user := cmp.Or(s.user, protocol.NoUser)
	end, err := link.listen(protocol.StreamDownSubject(to.Worker, to.Tenant, user, to.Sandbox, open.ID),
		protocol.StreamUpSubject(to.Worker, to.Tenant, user, to.Sandbox, open.ID))
	if err != nil {
		return nil, nil, err
	}
	subject := protocol.StreamOpenSubject(to.Worker, to.Tenant, user, to.Sandbox)
	reply, err = link.askToOpen(ctx, subject, to.Worker, &open)
	if err != nil || !reply.Stream {
		end.Close()
		return nil, reply, err
	}
	noticesLoss(&cfg, open.Kind)
	cfg.Ask = func() { end.probe(subject, open.ID) }
	cfg.Frame, cfg.PeerWindow, cfg.Greet = min(cfg.Frame, reply.Frame), reply.Window, true
	return end.open(cfg), reply, nil
}

// linkFor returns the connection for a stream.
func (s *Streams) linkFor(ctx context.Context, bulk bool) (*streamLink, error) {
	s.once.Do(func() { s.plain = newStreamLink(s.core) })
	if !bulk {
		return s.plain, nil
	}
	return s.bulk.open(ctx, s.core)
}

// resetAll resets the streams of a connection that is about to be closed.
func (s *Streams) resetAll() {
	s.once.Do(func() { s.plain = newStreamLink(s.core) })
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	s.plain.resetAll(ctx)
	if bulk := s.bulk.current(); bulk != nil {
		bulk.resetAll(ctx)
		bulk.conn.Close()
	}
}

// bulkWindow is the first window of a bulk stream. It grows to [protocol.MaxStreamWindow].
const bulkWindow = 1 << 20

// streamConfig returns the sizes of the frames and windows of one end of a stream.
func streamConfig(link *streamLink, bulk bool) stream.Config {
	most := link.frameMost(bulk)
	cfg := stream.Config{Frame: most, TakeFrame: most}
	if bulk {
		cfg.Window, cfg.MaxWindow = bulkWindow, protocol.MaxStreamWindow
	} else {
		cfg.Window = protocol.StreamWindow
	}
	return cfg
}

// askToOpen sends the request once and waits for the answer.
func (l *streamLink) askToOpen(ctx context.Context, subject, worker string, open *protocol.StreamOpen) (
	*protocol.StreamReply, error) {
	m := nats.NewMsg(subject)
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	m.Data = protocol.Encode(open)
	if most := l.conn.nc.MaxPayload(); int64(m.Size()) > most {
		return nil, &protocol.Error{Code: protocol.InvalidArgument, Reason: protocol.ReasonTooLarge, Field: "request",
			Message: "with its envelope, the request exceeds the NATS server's max_payload of " +
				protocol.Bytes(most).String() + ": send less in it, or raise max_payload"}
	}
	ctx, cancel := context.WithTimeout(ctx, open.Timeout.Std())
	defer cancel()
	ctx, end := l.conn.awaitLong(ctx, subject)
	defer end()
	ctx, answered := l.watchOpening(ctx, subject, open.ID)
	defer answered()
	answer, err := l.conn.nc.RequestMsgWithContext(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonNoWorker,
			"worker %s does not answer: it does not run, or its version serves no streams", worker)
	}
	if err != nil {
		return nil, translate(causeOf(ctx, err), "open a stream")
	}
	reply := &protocol.StreamReply{}
	if err := protocol.DecodeAs(answer.Header.Get(protocol.HeaderContentType), answer.Data, reply); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return reply, reply.Validate()
}
