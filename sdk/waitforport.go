package sdk

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// portAsk is how long one request to a worker waits for a server in a sandbox. It is short, so that the end of a worker
// is noticed.
const portAsk = 10 * time.Second

// portLast is the least time for one more request: a try within it is cut short, and says less than the one before.
const portLast = 500 * time.Millisecond

// PortOption is an option of [Sandbox.WaitForPort] and [Sandbox.WaitForHTTP].
type PortOption interface{ forPort(*settings) }

// WaitForPort waits until the sandbox is ready and a TCP connection to a port of the sandbox's primary container or,
// with [WithService], of a service succeeds. The port, 1 to 65535, need not be published: the sandbox's worker connects
// inside the container, about once a second, and only while somebody waits. WaitForPort also waits while NATS or the
// worker is away. Ending ctx ends only the wait; the error then says what the last try found.
//
// Options: [WithService]. Errors: invalid_argument with field port or service; not_found; the error of a sandbox that
// failed; failed_precondition if the sandbox stops, or was started by a worker that could not connect;
// permission_denied; deadline_exceeded or cancelled if ctx ended.
func (s *Sandbox) WaitForPort(ctx context.Context, port int, opts ...PortOption) error {
	o := settingsOf(opts, PortOption.forPort)
	return portWait{s, protocol.PortWait{Service: o.service, Port: port}}.wait(ctx)
}

// WaitForHTTP waits as [Sandbox.WaitForPort] does, until an HTTP GET request for a path on a port gets a response with
// a status, 100 to 599; 0 stands for any status from 200 to 399. The request goes to localhost, without TLS. Redirects
// are not followed. Errors: those of WaitForPort; invalid_argument with field path or status.
func (s *Sandbox) WaitForHTTP(ctx context.Context, port int, path string, status int, opts ...PortOption) error {
	o := settingsOf(opts, PortOption.forPort)
	if path == "" {
		return protocol.Invalid("path", "must begin with /")
	}
	return portWait{s, protocol.PortWait{Service: o.service, Port: port, Path: path, Status: status}}.wait(ctx)
}

type portWait struct {
	s *Sandbox
	protocol.PortWait
}

func (w portWait) wait(ctx context.Context) error {
	if err := w.Validate(); err != nil {
		return err
	}
	if err := w.s.WaitReady(ctx); err != nil {
		return err
	}
	found := "no worker has answered yet"
	for {
		answer, err := w.ask(ctx)
		switch {
		case err == nil && answer.Ready:
			return nil
		case err == nil:
			found = answer.Found
			if end, ok := ctx.Deadline(); ok && time.Until(end) < portLast { // the worker answers shortly before the end
				<-ctx.Done()
			}
		case !isTransient(err) && protocol.AsError(err).Reason != protocol.ReasonNotHere && ctx.Err() == nil:
			return err
		case ctx.Err() == nil:
			found = protocol.AsError(err).Message
			if !isContextEnd(err) {
				backoff.Sleep(ctx, retryPause)
			}
			if protocol.AsError(err).Reason == protocol.ReasonNotHere { // the handle knows an older worker
				_ = w.s.Refresh(ctx) // after an error, the next request fails in the same way
			}
		}
		if ended := ctx.Err(); ended != nil {
			code := protocol.CodeOf(ctxEnded(ended, ""))
			return &typedError{protocol.Errorf(code, "", "wait for %s: %v; the last try: %s", w.what(), ended, found), ended}
		}
	}
}

func (w portWait) ask(ctx context.Context) (*protocol.PortAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, portAsk)
	defer cancel()
	ask := opening{repeats: true,
		open: protocol.StreamOpen{Kind: protocol.StreamKindPort, Request: protocol.Encode(&w.PortWait)}}
	conn, reply, err := ask.do(ctx, w.s)
	if err != nil {
		return nil, err
	}
	if conn != nil {
		conn.Reset(nil)
		return nil, protocol.Errorf(protocol.Internal, "", "the worker opened a stream that nobody asked for")
	}
	answer := &protocol.PortAnswer{}
	return answer, protocol.DecodeAs(protocol.ContentMsgpack, reply.Result, answer)
}

func (w portWait) what() string {
	what := "port " + strconv.Itoa(w.Port) + " of sandbox " + w.s.ID()
	if w.Service != "" {
		what = "port " + strconv.Itoa(w.Port) + " of service " + w.Service + " of sandbox " + w.s.ID()
	}
	if w.Path != "" {
		what = fmt.Sprintf("an answer to GET %.200s on %s", w.Path, what)
	}
	return what
}
