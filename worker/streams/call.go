package streams

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/files"
)

// Call is one request for an operation inside a sandbox of this host. One goroutine uses it.
type Call struct {
	Key  protocol.SandboxKey
	User string // user of the client, proven by the server; empty for a client without a user
	Open *protocol.StreamOpen
	Log  *slog.Logger

	server    *Server
	sandbox   Sandbox
	container *attach.Attachment // the container that the call works in; nil: none yet
	atEnd     []func()

	target         target // what the history tells about the call's stream
	path           string // path that target.operation changes
	failed         bool   // the operation returned an error; set before it ends
	sent, received atomic.Int64
}

// Container returns the connection to the supervisor of a service's container, or of the primary container if service
// is "". The call ends with this container. Errors: those of [Sandbox.Reach].
func (c *Call) Container(ctx context.Context, service string) (*attach.Attachment, error) {
	a, err := c.sandbox.Reach(ctx, service)
	if err == nil {
		c.container = a
	}
	return a, err
}

// Files returns a session that works on the files of a container as a user. It is shared with other calls. The call
// gives it back at its end, so the caller must not close it. See [Call.Container] for service, and
// [github.com/boxfleet/boxfleet/worker/supervise.Link.Files] for user and cwd.
func (c *Call) Files(ctx context.Context, service, user, cwd string) (*files.Session, error) {
	a, err := c.Container(ctx, service)
	if err != nil {
		return nil, err
	}
	session, release, err := c.server.sessions.get(ctx, a, user, cwd)
	if err == nil {
		c.atEnd = append(c.atEnd, release)
	}
	return session, err
}

// AtEnd calls f when the call ends: after its answer, or after its stream.
func (c *Call) AtEnd(f func()) { c.atEnd = append(c.atEnd, f) }

func (c *Call) end() {
	for i := len(c.atEnd) - 1; i >= 0; i-- {
		c.atEnd[i]()
	}
	c.atEnd = nil
}

// serve serves a stream until it ends, or its container does.
func (c *Call) serve(ctx context.Context, conn *stream.Conn, inner func(context.Context, *stream.Conn) error) error {
	defer c.server.uses.begin(c)()
	if c.container == nil {
		return inner(ctx, conn)
	}
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	gone := false // only read after watched was closed
	go func() {
		defer close(watched)
		select {
		case <-c.container.Done():
			gone = true
			conn.Reset(c.why())
			cancel()
		case <-ctx.Done():
		}
	}()
	err := inner(ctx, conn)
	cancel()
	<-watched
	if gone {
		return c.why()
	}
	return err
}

// why returns why the worker is no longer connected to the container.
func (c *Call) why() *protocol.Error {
	if why := c.Ending(); why != nil {
		return why
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonContainerExited, "the container has ended")
}

// Ending returns why the call's container ends, or nil if it should run. When a sandbox is stopped, its processes end
// before its container does.
func (c *Call) Ending() *protocol.Error {
	if c.server.tenure.Err() != nil {
		return errTenureEnds
	}
	return c.sandbox.Left()
}

var errTenureEnds = protocol.Errorf(protocol.Unavailable, protocol.ReasonStreamLost,
	"the worker stops or lost the lock of its host: open the stream again")

// Tell makes the sandbox's history record this call's stream: that the user opened a stream to an address in a
// service's container, or in the primary container if service is "", and, when the stream has ended, how many bytes it
// carried.
func (c *Call) Tell(service, address string) {
	c.target = target{kind: c.Open.Kind, user: c.User, service: service, address: address, told: true}
}

// aim makes the sandbox's history record which files the request changes, if it changes any. Call it before the stream
// is served.
func (c *Call) aim(r *protocol.FileRequest) {
	if name, path := r.Change(); name != "" {
		c.target = target{kind: c.Open.Kind, user: c.User, service: r.Service, operation: name, told: true}
		c.path = shortPath(path)
	}
}

// change carries out an operation on files. If the call's stream does not count the operation as a change, change does.
func (c *Call) change(r *protocol.FileRequest, operation func() error) (err error) {
	if name, _ := r.Change(); name == "" {
		return operation()
	}
	if c.target.operation == "" {
		before := c.sent.Swap(0)
		defer c.sent.Store(before)
		c.aim(r)
		end := c.server.uses.begin(c)
		defer end()
	}
	err = operation()
	c.failed = err != nil
	return err
}

// shortPath returns a path as a history stores it.
func shortPath(path string) string {
	return strings.ToValidUTF8(path[:min(len(path), protocol.MaxUsedPath)], "")
}

// Sent counts bytes that the client sent into the sandbox.
func (c *Call) Sent(n int) { c.sent.Add(int64(n)) }

// Received counts bytes that the client received from the sandbox.
func (c *Call) Received(n int) { c.received.Add(int64(n)) }
