package streams

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// dialTimeout limits one dialling, whatever the client's deadline is. Few diallings run in a container at a time, and a
// server that does not answer must not keep the others waiting for long.
const dialTimeout = 10 * time.Second

// dial connects a stream to a server in a container.
func dial(ctx context.Context, c *Call) (*jetstream.StreamAnswer, error) {
	var r protocol.StreamDial
	if err := protocol.DecodeStrict(protocol.ContentMsgpack, c.Open.Request, &r); err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := notBulk(c); err != nil {
		return nil, err
	}
	session, err := c.Files(ctx, r.Service, "", "")
	if err != nil {
		return nil, err
	}
	dialling, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	server, err := session.Dial(dialling, r.Network, r.Address)
	if err != nil {
		return nil, err
	}
	c.AtEnd(func() { server.Close() })
	c.Tell(r.Service, r.Address)
	return &jetstream.StreamAnswer{Serve: func(ctx context.Context, conn *stream.Conn) error {
		return (&tunnel{client: conn, server: server, call: c}).run(ctx)
	}}, nil
}

// notBulk refuses a bulk stream for an operation that may stay open for long. Its windows are 16 times as large, and a
// client may open many such streams and read none of them.
func notBulk(c *Call) error {
	if c.Open.Bulk {
		return protocol.Invalid("bulk", "must not be set for a stream of the kind %s", c.Open.Kind)
	}
	return nil
}

// tunnel joins a stream with a connection to a server in a container.
type tunnel struct {
	client *stream.Conn
	server net.Conn
	call   *Call
}

// lingerTime is how long a server may take to read the rest of a client's bytes after the client has closed its end.
const lingerTime = 10 * time.Second

// run copies bytes in both directions until both have ended, or one end fails. The error is one of the server's.
func (t *tunnel) run(ctx context.Context) error {
	defer t.server.Close()
	stop := context.AfterFunc(ctx, t.clientEnded)
	defer stop()
	sent := make(chan error, 1)
	go func() { sent <- t.send() }()
	err := t.receive()
	return errors.Join(err, <-sent)
}

// clientEnded ends the connection to the server. If the client closed its end, the server still gets the bytes that the
// client sent.
func (t *tunnel) clientEnded() {
	if why := t.client.Err(); protocol.CodeOf(why) == protocol.Cancelled {
		_ = t.server.SetDeadline(time.Now().Add(lingerTime)) // fails only if the connection is closed
		return
	}
	t.server.Close()
}

// send copies from the client to the server. If the server takes no more, it may still send: so the other direction
// continues, and ends by itself when the connection is broken.
func (t *tunnel) send() error {
	to := &toServer{t: t}
	_, err := t.client.WriteTo(to)
	switch {
	case to.err != nil:
		return t.failure(to.err)
	case err != nil:
		t.clientEnded()
	default:
		if half, ok := t.server.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // fails if the server has closed the connection, which receive notices
		}
	}
	return nil
}

// receive copies from the server to the client.
func (t *tunnel) receive() error {
	from := &fromServer{t: t}
	_, err := t.client.ReadFrom(from)
	switch {
	case from.err == nil && err != nil:
		t.clientEnded()
		return nil
	case from.err == nil && t.call.Ending() == nil:
		_ = t.client.CloseWrite() // fails only if the stream has ended, which send notices
		return nil
	case from.err == nil: // the server was killed with the sandbox, and some of its bytes may be missing
		from.err = io.EOF
	}
	why := t.failure(from.err)
	if why != nil {
		t.client.Reset(why)
	}
	return why
}

// toServer writes to the server, counts the bytes, and keeps the error.
type toServer struct {
	t   *tunnel
	err error
}

func (s *toServer) Write(p []byte) (n int, err error) {
	n, s.err = s.t.server.Write(p)
	s.t.call.Sent(n)
	return n, s.err
}

// fromServer reads from the server, counts the bytes, and keeps an error other than [io.EOF].
type fromServer struct {
	t   *tunnel
	err error
}

func (s *fromServer) Read(p []byte) (n int, err error) {
	n, err = s.t.server.Read(p)
	s.t.call.Received(n)
	return n, s.keep(err)
}

// AwaitReadable implements [stream.Readable], so that an idle connection needs no buffer.
func (s *fromServer) AwaitReadable() error {
	if server, ok := s.t.server.(stream.Readable); ok {
		return s.keep(server.AwaitReadable())
	}
	return nil
}

func (s *fromServer) keep(err error) error {
	if err != io.EOF {
		s.err = err
	}
	return err
}

// failure returns the error that the client gets when the connection to the server has failed; nil if the stream has
// ended.
func (t *tunnel) failure(err error) error {
	switch ending := t.call.Ending(); {
	case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded): // the stream has ended
		return nil
	case ending != nil:
		return ending
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonConnectionReset,
			"the server in the sandbox reset the connection")
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonConnectionReset,
		"the connection to the server in the sandbox failed: %v", err)
}
