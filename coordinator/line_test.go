package coordinator

import (
	"bytes"
	"net"
	"sync"
)

// way is how a client comes to the server.
type way interface{ InProcessConn() (net.Conn, error) }

// line is a way to the server that a test breaks, or holds where something is asked.
type line struct {
	server way

	mu    sync.Mutex
	down  bool
	conns []net.Conn
	asks  []byte
	held  func() // called before what asks goes out for the first time
}

func (l *line) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, net.ErrClosed
	}
	conn, err := l.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	l.conns = append(l.conns, conn)
	return &heldConn{conn, l}, nil
}

// hold calls f before the client asks something for the first time, which waits for f.
func (l *line) hold(asks string, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks, l.held = []byte(asks), f
}

// setDown ends the connections, and refuses new ones until it is up again.
func (l *line) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down = down; !down {
		return
	}
	for _, conn := range l.conns {
		_ = conn.Close() // may be closed already
	}
	l.conns = nil
}

type heldConn struct {
	net.Conn
	line *line
}

func (c *heldConn) Write(b []byte) (int, error) {
	c.line.mu.Lock()
	held := c.line.held
	if held == nil || !bytes.Contains(b, c.line.asks) {
		held = nil
	} else {
		c.line.held = nil
	}
	c.line.mu.Unlock()
	if held != nil {
		done := make(chan struct{})
		go func() { // a test that ends here must not end the client's goroutine, which has its lock
			defer close(done)
			held()
		}()
		<-done
	}
	return c.Conn.Write(b)
}
