package streams

import (
	"context"
	"log/slog"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
	"github.com/boxfleet/boxfleet/worker/attach"
)

// Sandbox is a sandbox of this host.
type Sandbox interface {
	// Reach waits until the supervisor of a service's container, or of the primary container if service is "", is
	// connected, and returns the connection. Errors: invalid_argument with field service; failed_precondition if the
	// sandbox is not ready, or is not on this host any more; unavailable.
	Reach(ctx context.Context, service string) (*attach.Attachment, error)

	// Left returns why the sandbox does not run on this host any more, or is about to end; nil: it should run.
	Left() *protocol.Error

	// ExecInput reports whether an exec that takes input has started, and the service in whose container it runs. Errors:
	// not_found; failed_precondition if the exec has ended or takes no input.
	ExecInput(ctx context.Context, exec string) (service string, started bool, err error)

	// Used appends an event to the sandbox's history that says how clients use streams into the sandbox.
	Used(ctx context.Context, uses []protocol.StreamUse) error

	// IdleTTL returns how long the sandbox may be without activity before it is stopped; 0: for ever.
	IdleTTL() time.Duration
}

// Config configures a [Server]. All fields are required.
type Config struct {
	Worker string
	// Find returns a sandbox of this host, or nil.
	Find   func(k protocol.SandboxKey) Sandbox
	Logger *slog.Logger
}

// Conn is a connection to NATS that serves streams.
type Conn interface {
	ServeStreams(ctx context.Context, worker string, handle jetstream.StreamHandler, limits jetstream.StreamLimits,
		serving func()) error
}

// perSandbox is how many operations and streams of one sandbox may be open at a time. It is above the default, because
// a browser or a pool of connections to a database opens many connections at once.
const perSandbox = 128

// Server serves the streams of one worker during one tenure.
type Server struct {
	cfg      Config
	tenure   context.Context
	sessions *sessions
	inputs   *inputs
	turns    *turns
	uses     *uses
}

// Serve answers requests until ctx, the context of the tenure, ends. Then it ends the open streams and waits for their
// handlers. serving may be nil; it is called when requests are received. Errors: those of
// [jetstream.Streams.ServeStreams].
func Serve(ctx context.Context, conn Conn, cfg Config, serving func()) error {
	s := &Server{cfg: cfg, tenure: ctx, sessions: newSessions(), inputs: newInputs(), turns: newTurns(),
		uses: newUses(cfg.Logger)}
	defer s.sessions.close()
	ended := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		s.uses.run(ctx, ended)
	}()
	defer func() { close(ended); <-told }()
	return conn.ServeStreams(ctx, cfg.Worker, s.handle, jetstream.StreamLimits{Sandbox: perSandbox}, serving)
}

// handle answers one request.
func (s *Server) handle(ctx context.Context, r *jetstream.StreamRequest) (*jetstream.StreamAnswer, error) {
	handler, known := kinds[r.Open.Kind]
	if !known {
		return nil, protocol.Errorf(protocol.InvalidArgument, protocol.ReasonUnsupported,
			"worker %s has no operation of the kind %q: it may be older than the client", s.cfg.Worker, r.Open.Kind)
	}
	key := protocol.SandboxKey{Tenant: r.Tenant, ID: r.Sandbox}
	found := s.cfg.Find(key)
	if found == nil {
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNotHere,
			"sandbox %s is not on worker %s", r.Sandbox, s.cfg.Worker)
	}
	c := &Call{Key: key, User: r.User, Open: &r.Open, Log: s.cfg.Logger.With("sandbox", r.Sandbox, "kind", r.Open.Kind),
		server: s, sandbox: found, target: target{kind: r.Open.Kind, user: r.User}}
	answered := false
	defer func() {
		if !answered { // the handler failed or panicked, or its answer has no stream
			c.end()
		}
	}()
	answer, err := handler(ctx, c)
	if err != nil || answer == nil || answer.Serve == nil {
		return answer, err
	}
	inner := answer.Serve
	answer.Serve = func(ctx context.Context, conn *stream.Conn) error { return c.serve(ctx, conn, inner) }
	answer.End = c.end // called even if the stream cannot be opened
	answered = true
	return answer, nil
}
