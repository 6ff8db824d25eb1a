package jetstream

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// StreamRequest is a request of a client for an operation inside a sandbox.
type StreamRequest struct {
	Tenant, Sandbox string              // the server's permissions prove the tenant
	User            string              // user of the client, proven by the server; empty for a client without a user
	Open            protocol.StreamOpen // validated
}

// StreamAnswer answers a [StreamRequest].
type StreamAnswer struct {
	Result []byte // the operation's own type in msgpack

	// Serve serves the stream. It is nil if Result is the whole answer. ctx ends when the stream was reset or lost, or the
	// worker stops. When Serve returns, the stream is closed, or reset with the error.
	Serve func(ctx context.Context, conn *stream.Conn) error

	// End releases what the answer holds. It is called once: when Serve has returned, or instead of Serve if the stream
	// could not be opened. It may be nil.
	End func()
}

// StreamHandler answers one request. It must check that the sandbox belongs to the tenant and runs on this worker's
// host. ctx ends when the client stops waiting. Several requests are answered at once.
type StreamHandler func(ctx context.Context, r *StreamRequest) (*StreamAnswer, error)

// streamService serves the streams of a worker.
type streamService struct {
	own    *Conn
	plain  *streamLink
	bulk   bulkLink
	worker string
	handle StreamHandler
	slots  *streamSlots
	memory *stream.Budget
	tasks  sync.WaitGroup

	unanswered unansweredRequests
}

// ServeStreams answers requests for streams to a worker until ctx ends. Then it resets the open streams and waits for
// their handlers. It calls serving when it has begun to receive requests. serving may be nil. Errors: those of
// [Connect]; invalid_argument with field worker; unavailable if the connection was closed for good; the error of ctx.
func (s *Streams) ServeStreams(
	ctx context.Context, worker string, handle StreamHandler, limits StreamLimits, serving func(),
) error {
	if err := protocol.ValidateID("worker", worker); err != nil {
		return err
	}
	own, err := s.another(ctx, "streams")
	if err != nil {
		return err
	}
	defer own.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	v := &streamService{own: own, plain: newStreamLink(&own.core), worker: worker, handle: handle,
		slots: newStreamSlots(limits)}
	v.memory = stream.NewBudget(v.slots.limits.Memory)
	sub, err := own.nc.Subscribe(protocol.StreamOpenSubject(worker, "*", "*", "*"), func(m *nats.Msg) {
		v.asked(ctx, m)
	})
	if err != nil {
		return translate(err, "receive requests for streams")
	}
	if err := own.Flush(ctx); err != nil {
		return err
	}
	if serving != nil {
		serving()
	}
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-own.Closed():
		err = translate(nats.ErrConnectionClosed, "receive requests for streams")
	}
	_ = sub.Unsubscribe() // fails only if the connection is closed
	stop()
	v.tasks.Wait()
	v.flush()
	return err
}

// flush sends the last frames before the connections are closed.
func (v *streamService) flush() {
	for _, l := range []*streamLink{v.plain, v.bulk.current()} {
		if l != nil && l.conn.Connected() {
			_ = l.conn.Flush(context.Background()) // if it fails, clients notice the silence
		}
	}
}

// asked takes a request. It does not block.
func (v *streamService) asked(ctx context.Context, m *nats.Msg) {
	_, tenant, user, sandbox, _ := protocol.SplitStreamOpenSubject(m.Subject)
	r := &StreamRequest{Tenant: tenant, User: user, Sandbox: sandbox}
	if !protocol.MayReply(m.Reply, tenant, user) || isRepublished(m.Header) {
		v.own.log.Warn("dropped a request for a stream: the reply subject is not in the user's inbox, or a stream "+
			"republished the request", "subject", m.Subject, "reply", m.Reply)
		return
	}
	if err := r.validate(); err != nil {
		v.reply(v.plain, m, &protocol.StreamReply{Error: protocol.AsError(err)})
		return
	}
	if v.answerProbe(m, r) {
		return
	}
	release, err := v.slots.take(tenant, sandbox)
	if err != nil {
		v.reply(v.plain, m, &protocol.StreamReply{Error: protocol.AsError(err)})
		return
	}
	v.unanswered.received(m.Subject)
	v.tasks.Go(func() {
		defer release()
		v.answer(ctx, m, r)
	})
}

func (r *StreamRequest) validate() error {
	if err := protocol.ValidateID("tenant", r.Tenant); err != nil {
		return err
	}
	if r.User != "" {
		if err := protocol.ValidateUser("user", r.User); err != nil {
			return err
		}
	}
	return protocol.ValidateID("sandbox", r.Sandbox)
}

// answer carries out a request, with its stream if it has one. ctx ends when the worker stops.
func (v *streamService) answer(ctx context.Context, m *nats.Msg, r *StreamRequest) {
	fail := func(err error) { v.reply(v.plain, m, &protocol.StreamReply{Error: protocol.AsError(err)}) }
	err := protocol.DecodeStrict(headerOf(m.Header, protocol.HeaderContentType), m.Data, &r.Open)
	if err == nil {
		err = r.Open.Validate()
	}
	if err != nil {
		v.unanswered.decoded(m.Subject, "")
		fail(err)
		return
	}
	answered := v.unanswered.decoded(m.Subject, v.upSubject(r, r.Open.ID))
	defer answered()
	answer, err := v.ask(ctx, r)
	if err == nil && answer.End != nil {
		answer.End = sync.OnceFunc(answer.End)
		defer answer.End()
	}
	switch {
	case err != nil:
		fail(err)
	case answer.Serve == nil:
		v.reply(v.plain, m, &protocol.StreamReply{Result: answer.Result})
	default:
		if err := v.stream(ctx, m, r, answer, answered); err != nil {
			fail(err)
		}
	}
}

// ask calls the handler. If the handler panics, only this request fails.
func (v *streamService) ask(ctx context.Context, r *StreamRequest) (answer *StreamAnswer, err error) {
	defer v.recovered(r, &err)
	within, cancel := context.WithTimeout(ctx, r.Open.Timeout.Std())
	defer cancel()
	answer, err = v.handle(within, r)
	if err == nil && answer == nil {
		err = protocol.Errorf(protocol.Internal, "", "the handler of kind %s gave no answer", r.Open.Kind)
	}
	if errors.Is(err, context.DeadlineExceeded) && within.Err() != nil {
		err = protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonTimeout,
			"the operation did not end within %s", r.Open.Timeout)
	}
	return answer, err
}

func (v *streamService) recovered(r *StreamRequest, err *error) {
	if p := recover(); p != nil {
		v.own.log.Error("a request for a stream panicked", "kind", r.Open.Kind, "panic", p, "stack", string(debug.Stack()))
		*err = protocol.Errorf(protocol.Internal, "", "the request panicked: see the log of worker %s", v.worker)
	}
}

// stream opens a stream, says so to the client, and serves it to its end. It calls registered once a probe finds the
// stream. An error means that the client was not told.
func (v *streamService) stream(
	ctx context.Context, m *nats.Msg, r *StreamRequest, answer *StreamAnswer, registered func(),
) error {
	link := v.plain
	if r.Open.Bulk {
		var err error
		if link, err = v.openBulk(ctx, r); err != nil {
			return err
		}
	}
	user := cmp.Or(r.User, protocol.NoUser)
	end, err := link.listen(v.upSubject(r, r.Open.ID),
		protocol.StreamDownSubject(v.worker, r.Tenant, user, r.Sandbox, r.Open.ID))
	if err != nil {
		return err
	}
	registered()
	cfg := v.config(link, r.Open.Bulk)
	reply := &protocol.StreamReply{Stream: true, Result: answer.Result, Window: cfg.Window, Frame: cfg.TakeFrame}
	cfg.Frame, cfg.PeerWindow = min(cfg.Frame, r.Open.Frame), r.Open.Window
	cfg.FirstFrame, cfg.Ping = r.Open.Timeout.Std(), v.slots.limits.Ping
	// The reply travels on the stream's connection, so the server knows the subscription before the client knows that the
	// stream is open.
	if !v.reply(link, m, reply) {
		v.memory.Return(cfg.Window)
		end.Close()
		return nil
	}
	conn := end.open(cfg)
	err = v.serve(ctx, r, answer, conn)
	if answer.End != nil {
		answer.End() // before the client has read everything
	}
	if err == nil && ctx.Err() != nil {
		err = errWorkerStops // a handler that stops early must not look like one that has finished
	}
	if err != nil {
		conn.Reset(err)
	} else {
		_ = conn.Close() // returns no error
	}
	select {
	case <-conn.Done():
	case <-ctx.Done():
		conn.Reset(errWorkerStops)
	}
	return nil
}

// upSubject returns the subject of the frames that a client sends on a stream.
func (v *streamService) upSubject(r *StreamRequest, id string) string {
	return protocol.StreamUpSubject(v.worker, r.Tenant, cmp.Or(r.User, protocol.NoUser), r.Sandbox, id)
}

// First windows that a worker grants, in bytes. They grow while the handler keeps up with the client.
const (
	workerWindow     = protocol.StreamFrame
	workerBulkWindow = protocol.StreamBulkFrame
)

// config returns the sizes of the frames and windows of the worker's end of a stream. The window is taken from the
// budget.
func (v *streamService) config(link *streamLink, bulk bool) stream.Config {
	cfg := streamConfig(link, bulk)
	cfg.MaxWindow = max(cfg.Window, cfg.MaxWindow)
	want := workerWindow
	if bulk {
		want = workerBulkWindow
	}
	cfg.Window, cfg.Budget = v.memory.Window(want), v.memory
	return cfg
}

func (v *streamService) openBulk(ctx context.Context, r *StreamRequest) (*streamLink, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Open.Timeout.Std())
	defer cancel()
	return v.bulk.open(ctx, &v.own.core)
}

var errWorkerStops = protocol.Errorf(protocol.Unavailable, protocol.ReasonStreamLost,
	"the worker stops: open the stream again")

// serve runs the handler of a stream. The handler's context ends early if the stream does.
func (v *streamService) serve(
	ctx context.Context, r *StreamRequest, answer *StreamAnswer, conn *stream.Conn,
) (err error) {
	defer v.recovered(r, &err)
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan struct{})
	defer close(served)
	go func() {
		select {
		case <-conn.Done():
			if conn.Err() != nil {
				cancel()
			}
		case <-ctx.Done():
			conn.Reset(errWorkerStops)
		case <-served:
		}
	}()
	return answer.Serve(serving, conn)
}

// reply answers a request on a connection. It reports whether it sent a reply that is not an error.
func (v *streamService) reply(link *streamLink, m *nats.Msg, reply *protocol.StreamReply) (opened bool) {
	reply.Version = protocol.Version
	contentType := answerType(headerOf(m.Header, protocol.HeaderContentType), m.Data)
	out := nats.NewMsg(m.Reply)
	out.Header.Set(protocol.HeaderContentType, contentType)
	out.Data = protocol.EncodeAs(contentType, reply)
	if most := link.conn.nc.MaxPayload(); len(reply.Result) > protocol.MaxStreamRequest || int64(out.Size()) > most {
		reply = &protocol.StreamReply{Version: protocol.Version, Error: protocol.Errorf(protocol.ResourceExhausted,
			protocol.ReasonTooLarge, "the result has %d bytes, at most %d are allowed: ask for less",
			len(reply.Result), min(protocol.MaxStreamRequest, most-headerRoom))}
		out.Data = protocol.EncodeAs(contentType, reply)
	}
	if err := link.conn.nc.PublishMsg(out); err != nil {
		v.own.log.Warn("could not answer a request for a stream", "subject", m.Subject, "error", err)
		return false
	}
	return reply.Error == nil
}
