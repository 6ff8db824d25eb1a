package fleet

import (
	"net"
	"strings"
	"sync"
)

// Link is a way to the first NATS server that can be cut: a TCP proxy. While it is cut no byte
// passes in either direction, and nobody is told; what was on its way arrives when it is mended.
type Link struct {
	listener net.Listener
	server   string

	mu      sync.Mutex
	flowing chan struct{} // closed while the link is whole
	closed  bool
	conns   []net.Conn
	wg      sync.WaitGroup
}

// Link opens a link for a process, whose Role takes its URL.
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

// URL is what a process connects to.
func (l *Link) URL() string { return "nats://" + l.listener.Addr().String() }

// Cut stops every byte.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flowing = make(chan struct{})
}

// Mend ends [Link.Cut].
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.flowing)
}

// Break closes the connections; new ones are carried.
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
			return // closed
		}
		l.wg.Add(1)
		go l.carry(client)
	}
}

// carry takes one connection to the server, and its bytes in both directions.
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

// copy passes bytes on until either side ends, which ends both.
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

// pass waits until the link is whole; false when it is closed for good.
func (l *Link) pass() bool {
	l.mu.Lock()
	flowing := l.flowing
	l.mu.Unlock()
	<-flowing
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed
}

// keep notes a connection to be closed at the end; false when that was before.
func (l *Link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	return !l.closed
}

func (l *Link) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	l.closed = true
	for _, c := range l.conns {
		_ = c.Close()
	}
	select {
	case <-l.flowing:
	default:
		close(l.flowing)
	}
	l.mu.Unlock()
	l.wg.Wait()
}
