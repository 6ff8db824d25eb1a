package sdk

import (
	"context"
	"net"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// DialOption is an option of [Sandbox.DialContext] and [Sandbox.Dialer].
type DialOption interface{ forDial(*settings) }

// DialContext connects to a server in the sandbox's primary container or, with [WithService], in the container of a
// service. It needs no published port, and works in a sandbox without a network.
//
// The network is "tcp" with an address "host:port", whose host is an IP address or localhost, or "unix" with the path
// of a socket. The container's default user connects. The caller must close the connection. It has a CloseWrite method,
// which the server reads as the end of the connection's input; deadlines work as usual. It counts as activity of the
// sandbox, which is therefore not stopped as idle.
//
// The connection survives an interruption of NATS of less than a minute. It ends when the sandbox stops or its worker
// restarts; a killed worker is noticed within half a minute. Reads and writes then fail with an *Error:
// failed_precondition with the reason sandbox_stopped, sandbox_deleted or sandbox_failed, or unavailable with the
// reason stream_lost, container_exited or connection_reset.
//
// ctx limits only the dialling. Options: [WithService]. Errors: invalid_argument with field network, address or
// service; not_found; failed_precondition if the sandbox is not ready, or was started by a worker that could not
// connect; unavailable with reason connect_failed if nothing answers at the address, or no_worker if the worker does
// not run; resource_exhausted with reason too_many_streams; permission_denied; deadline_exceeded.
func (s *Sandbox) DialContext(ctx context.Context, network, address string, opts ...DialOption) (net.Conn, error) {
	o := settingsOf(opts, DialOption.forDial)
	r := protocol.StreamDial{Service: o.service, Network: network, Address: address}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	// Repeats: no byte was sent on a connection whose opening was lost, and the worker has closed it.
	ask := opening{repeats: true, open: protocol.StreamOpen{Kind: protocol.StreamKindDial, Request: protocol.Encode(&r)}}
	conn, _, err := ask.do(ctx, s)
	if err != nil && protocol.AsError(err).Reason == protocol.ReasonNotHere { // the handle knows an older worker
		if err = s.Refresh(ctx); err == nil {
			conn, _, err = ask.do(ctx, s)
		}
	}
	switch {
	case err != nil:
		return nil, failed(ctx, err, "connect to "+address+" in sandbox "+s.ID())
	case conn == nil:
		return nil, protocol.Errorf(protocol.Internal, "", "the worker opened no stream")
	}
	return &serverConn{Conn: conn, addr: serverAddr{network, address}}, nil
}

// Dialer returns [Sandbox.DialContext] with its options, as a function for the field DialContext of
// an http.Transport and the like.
func (s *Sandbox) Dialer(opts ...DialOption) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.DialContext(ctx, network, address, opts...)
	}
}

// serverConn is a connection to a server in a sandbox.
type serverConn struct {
	*stream.Conn
	addr serverAddr
}

// RemoteAddr returns the address that was dialled.
func (c *serverConn) RemoteAddr() net.Addr { return c.addr }

type serverAddr struct{ network, address string }

func (a serverAddr) Network() string { return a.network }
func (a serverAddr) String() string  { return a.address }
