package fleet

import (
	"net"
	"strings"
	"sync"
)

// Link is a TCP proxy to the first NATS server. A test can cut the link. While the link is cut, no byte passes in
// either direction and neither side gets an error. Bytes in flight arrive after [Link.Mend].
type Link struct {
	listener net.Listener
	server   string

	mu      sync.Mutex
	flowing chan struct{} // closed unless the link is cut
	closed  bool
	conns   []net.Conn
	wg      sync.WaitGroup
}

// Link opens a link. To use it, a process must have the link's URL in its Role.
func (f *Fleet) Link() *Link {
	f.TB.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.TB.Fatal(err)
	}
	l := &Link{listener: listener, server: strings.TrimPrefix(f.Servers[0].ClientURL(), "nats://"),
		flowing: make(chan struct{})}
	close(l.flowing)
	l.wg.Add(1)
	go l.accept()
	f.TB.Cleanup(l.close)
	return l
}

// URL returns the link's address, to which a process connects.
func (l *Link) URL() string { return "nats://" + l.listener.Addr().String() }

// Cut stops all bytes in both directions.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flowing = make(chan struct{})
}

// Mend undoes [Link.Cut].
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.flowing)
}

// Break closes the current connections. The link still accepts new connections.
func (l *Link) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
}

func (l *Link) accept() {
	defer l.wg.Done()
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // the link is closed
		}
		l.wg.Add(1)
		go l.carry(client)
	}
}

// carry proxies one connection to the server in both directions.
func (l *Link) carry(client net.Conn) {
	defer l.wg.Done()
	defer client.Close()
	if !l.keep(client) || !l.pass() {
		return
	}
	server, err := net.Dial("tcp", l.server)
	if err != nil {
		return
	}
	defer server.Close()
	if !l.keep(server) {
		return
	}
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		l.copy(server, client)
	}()
	l.copy(client, server)
}

// copy copies bytes until either side ends, and then closes both connections.
func (l *Link) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if !l.pass() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits while the link is cut. It returns false if the link is closed.
func (l *Link) pass() bool {
	l.mu.Lock()
	flowing := l.flowing
	l.mu.Unlock()
	<-flowing
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed
}

// keep registers a connection, so that it is closed when the link is closed. It returns false if the link is already
// closed.
func (l *Link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	return !l.closed
}

func (l *Link) close() {
	_ = l.listener.Close() // the link is not used any more
	l.mu.Lock()
	l.closed = true
	for _, c := range l.conns {
		_ = c.Close() // either side may have closed it
	}
	select {
	case <-l.flowing:
	default:
		close(l.flowing)
	}
	l.mu.Unlock()
	l.wg.Wait()
}
