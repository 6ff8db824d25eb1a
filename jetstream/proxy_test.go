package jetstream_test

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy is a TCP proxy between clients and a server. Tests use it to break and disturb connections.
type proxy struct {
	listener net.Listener
	server   string
	mute     atomic.Bool // discards what the server sends
	closed   atomic.Bool // refuses new connections
	held     sync.Mutex  // while a test holds it, nothing that the server sends is forwarded

	fromClient, fromServer atomic.Pointer[func(said []byte) []byte] // transform what each side sends

	lostConsumers atomic.Int64 // how many answers to requests for a consumer were discarded because of mute

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// throughProxy starts a proxy in front of the deployment's first server.
func throughProxy(t testing.TB, d *deployment) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	u, err := url.Parse(d.servers[0].ClientURL())
	must(t, err)
	p := &proxy{listener: l, server: u.Host, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close() // if this fails, Wait does not return
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.closed.Load() {
			_ = client.Close() // the client may have closed the connection already
			continue
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close() // the client may have closed the connection already
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.pump(server, client, &p.fromClient, nil) })
		p.wg.Go(func() { p.pump(client, server, &p.fromServer, &p.mute) })
	}
}

func (p *proxy) pump(to, from net.Conn, through *atomic.Pointer[func([]byte) []byte], mute *atomic.Bool) {
	defer p.end(to, from)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && (mute == nil || !mute.Load()) {
			data := buf[:n]
			if f := through.Load(); f != nil {
				data = (*f)(data)
			}
			if err := p.pass(to, data, mute != nil); err != nil {
				return
			}
		} else if bytes.Contains(buf[:n], []byte("consumer_create_response")) {
			p.lostConsumers.Add(1)
		}
		if err != nil {
			return
		}
	}
}

// pass forwards data. A test can hold back the server's data with p.held.
func (p *proxy) pass(to net.Conn, data []byte, fromServer bool) error {
	if fromServer {
		p.held.Lock()
		defer p.held.Unlock()
	}
	_, err := to.Write(data)
	return err
}

// whenClientSays calls f before it forwards the first message that a client sends to a subject that begins with the
// parameter subject.
func (p *proxy) whenClientSays(t testing.TB, subject string, f func()) {
	var once sync.Once
	hear := func(said []byte) []byte {
		if bytes.Contains(said, []byte("PUB "+subject)) {
			once.Do(f)
		}
		return said
	}
	p.fromClient.Store(&hear)
	t.Cleanup(func() { p.fromClient.Store(nil) })
}

// whenServerSays makes the proxy forward the result of f in place of what the server sends.
func (p *proxy) whenServerSays(t testing.TB, f func(said []byte) []byte) {
	p.fromServer.Store(&f)
	t.Cleanup(func() { p.fromServer.Store(nil) })
}

func (p *proxy) end(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // the connection may be closed already
		delete(p.conns, c)
	}
}

// cut ends every connection. The proxy accepts new connections unless it is closed.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close() // the connection may be closed already
	}
}

// partition ends every connection and refuses new ones.
func (p *proxy) partition() {
	p.closed.Store(true)
	p.cut()
}

// heal forwards everything again.
func (p *proxy) heal() {
	p.mute.Store(false)
	p.closed.Store(false)
}
