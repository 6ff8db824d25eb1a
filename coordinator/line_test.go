package coordinator

import (
	"bytes"
	"net"
	"sync"
)

// way is how a client connects to a server in the same process.
type way interface{ InProcessConn() (net.Conn, error) }

// line is a connection to the server that a test can break, or hold when the client sends a certain request.
type line struct {
	server way

	mu    sync.Mutex
	down  bool
	conns []net.Conn
	asks  []byte
	held  func() // called before the client first sends data that contains the bytes of the field asks
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

// hold waits for the first data from the client that contains the text in asks. It then calls f, and sends the data
// when f has returned.
func (l *line) hold(asks string, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks, l.held = []byte(asks), f
}

// setDown breaks the line: it closes all connections, and refuses new ones until the line is up again.
func (l *line) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down = down; !down {
		return
	}
	for _, conn := range l.conns {
		_ = conn.Close() // an error means that the connection is closed already
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
		go func() { // held may end its goroutine with t.Fatal; the client's goroutine holds a lock and must not end
			defer close(done)
			held()
		}()
		<-done
	}
	return c.Conn.Write(b)
}
