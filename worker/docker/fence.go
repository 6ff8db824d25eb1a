package docker

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// Unfenced is a fence that always allows changes. Tools and tests use it. A worker uses it to read the [Engine.HostID],
// because the worker needs this id before it can take the host's lock.
func Unfenced() error { return nil }

// fence refuses requests that could change something, unless the check allows them. The fence is between the Docker
// client and the socket, so no method can bypass the fence. The check runs a second time when the first byte of the
// request is written: the process may have been paused since the first check, and may have lost its lock meanwhile.
type fence struct {
	check func() error
	next  http.RoundTripper
}

// refusal carries the fence's error to the caller, past the Docker client. The client rewrites some errors, so the
// fence's error would be lost inside the client.
type refusal struct{ err atomic.Pointer[error] }

// get returns the fence's error, or nil if the fence allowed the request.
func (r *refusal) get() error {
	if err := r.err.Load(); err != nil {
		return *err
	}
	return nil
}

type refusalKey struct{}

// errFenced is the error that the Docker client gets for a refusal.
var errFenced = errors.New("refused by the fence")

// RoundTrip implements [http.RoundTripper].
func (f *fence) RoundTrip(req *http.Request) (*http.Response, error) {
	var ask func() error
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		ask = func() error { return f.ask(req.Context()) }
		if err := ask(); err != nil {
			if req.Body != nil {
				_ = req.Body.Close() // nothing was sent, and the caller gets the fence's error
			}
			return nil, err
		}
	}
	traced := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { arm(info.Conn, ask) },
	})
	return f.next.RoundTrip(req.WithContext(traced))
}

// ask runs the check, and stores its error for the caller.
func (f *fence) ask(ctx context.Context) error {
	err := f.check()
	if err == nil {
		return nil
	}
	if r, ok := ctx.Value(refusalKey{}).(*refusal); ok {
		r.err.Store(&err)
	}
	return errFenced
}

// fencedConn is a connection that runs the check before its next write.
type fencedConn struct {
	net.Conn
	ask atomic.Pointer[func() error]
}

// fenceConns makes a transport dial connections of type fencedConn.
func fenceConns(t *http.Transport) {
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &fencedConn{Conn: c}, nil
	}
}

// arm sets the check that the connection runs before its next write. If ask is nil, the next write is not checked.
func arm(c net.Conn, ask func() error) {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	if fenced, ok := c.(*fencedConn); ok {
		if fenced.ask.Store(nil); ask != nil {
			fenced.ask.Store(&ask)
		}
	}
}

// Write implements [net.Conn].
func (c *fencedConn) Write(data []byte) (int, error) {
	if ask := c.ask.Swap(nil); ask != nil {
		if err := (*ask)(); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(data)
}

func withRefusal(ctx context.Context) (context.Context, *refusal) {
	r := &refusal{}
	return context.WithValue(ctx, refusalKey{}, r), r
}
