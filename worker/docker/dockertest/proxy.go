package dockertest

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"time"
)

// Request is a request that reached the proxy.
type Request struct {
	Time      time.Time // when the request arrived
	Method    string
	Path      string // path of the URL, with the prefix for the API version
	Query     string
	Forwarded time.Time // when the proxy sent the request to the engine; zero: not sent
}

// Mutates reports whether the request could change something.
func (r Request) Mutates() bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// Fault says what the proxy does with a request before or instead of forwarding it. The zero value is no fault.
type Fault struct {
	Delay    time.Duration // wait for this time, then continue with the other fields
	Hang     bool          // never answer
	Drop     bool          // close the connection without an answer; the engine does not get the request
	DropLate bool          // forward the request, then close the connection without an answer
	Status   int           // answer with this status and Message; the engine does not get the request
	Message  string
}

// Proxy listens on its own socket, and forwards requests to an engine's socket.
type Proxy struct {
	server  *http.Server
	forward *httputil.ReverseProxy
	closed  chan struct{}

	mu       sync.Mutex
	requests []*Request
	fault    func(*http.Request) Fault
	flowing  chan struct{} // closed unless the proxy is paused
}

// NewProxy starts a proxy. The parameter upstream is the path of the unix socket to which the proxy forwards requests,
// and the parameter listen is the path of the proxy's own unix socket.
func NewProxy(upstream, listen string) (*Proxy, error) {
	listener, err := net.Listen("unix", listen)
	if err != nil {
		return nil, err
	}
	p := &Proxy{closed: make(chan struct{}), flowing: make(chan struct{})}
	close(p.flowing)
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine"
			r.Out.Host = r.In.Host
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", upstream)
			},
			DisableCompression: true,
		},
		FlushInterval: -1, // forward events and logs without delay
		ErrorLog:      log.New(io.Discard, "", 0),
		// If the engine cannot be reached, close the connection instead of answering 502.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode != http.StatusSwitchingProtocols {
				resp.Body = &pausable{ReadCloser: resp.Body, proxy: p}
			}
			return nil
		},
	}
	p.server = &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = p.server.Serve(listener) }() // Serve returns when Close is called
	return p, nil
}

// Close stops the proxy, closes all its connections, and removes its socket.
func (p *Proxy) Close() error {
	select {
	case <-p.closed:
		return nil
	default:
		close(p.closed)
	}
	err := p.server.Close()
	p.forward.Transport.(*http.Transport).CloseIdleConnections()
	return err
}

// Requests returns the requests since the start or the last [Proxy.Reset], in order.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Request, len(p.requests))
	for i, r := range p.requests {
		all[i] = *r
	}
	return all
}

// Mutations returns the [Proxy.Requests] that could change something.
func (p *Proxy) Mutations() []Request {
	return slices.DeleteFunc(p.Requests(), func(r Request) bool { return !r.Mutates() })
}

// Reset clears the recorded requests.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = nil
}

// Inject sets the function that chooses the fault of each further request. nil means no faults.
func (p *Proxy) Inject(fault func(*http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// Pause makes the engine appear hung: requests are accepted but not answered, and streams deliver nothing.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flowing:
		p.flowing = make(chan struct{})
	default:
	}
}

// Resume ends [Proxy.Pause]. Waiting requests are forwarded to the engine, unless their senders have given up.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flowing:
	default:
		close(p.flowing)
	}
}

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record, fault := p.record(r)
	p.hold(r.Context(), fault)
	switch {
	case fault.Drop:
		panic(http.ErrAbortHandler)
	case fault.Status != 0:
		answer(w, fault)
		return
	}
	p.mu.Lock()
	record.Forwarded = time.Now()
	p.mu.Unlock()
	if fault.DropLate {
		p.forward.ServeHTTP(discard{http.Header{}}, r)
		panic(http.ErrAbortHandler)
	}
	p.forward.ServeHTTP(w, r)
}

func (p *Proxy) record(r *http.Request) (*Request, Fault) {
	record := &Request{Time: time.Now(), Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery}
	p.mu.Lock()
	p.requests = append(p.requests, record)
	injected := p.fault
	p.mu.Unlock()
	if injected == nil {
		return record, Fault{}
	}
	return record, injected(r)
}

// hold delays a request according to its fault, and while the proxy is paused. It panics to abort the request if the
// sender closes the connection or the proxy is closed.
func (p *Proxy) hold(ctx context.Context, fault Fault) {
	var never chan struct{}
	until := func(released <-chan struct{}, after <-chan time.Time) {
		select {
		case <-released:
		case <-after:
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		case <-p.closed:
			panic(http.ErrAbortHandler)
		}
	}
	if fault.Delay > 0 {
		until(nil, time.After(fault.Delay))
	}
	if fault.Hang {
		until(never, nil)
	}
	until(p.gate(), nil)
}

// gate returns a channel that is closed unless the proxy is paused.
func (p *Proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flowing
}

// answer writes an error in the engine's format.
func answer(w http.ResponseWriter, fault Fault) {
	message := fault.Message
	if message == "" {
		message = "injected fault"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(fault.Status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": message}) // fails only if the client is gone
}

// pausable is a response's body that blocks while the proxy is paused.
type pausable struct {
	io.ReadCloser
	proxy *Proxy
}

// Read implements [io.Reader].
func (b *pausable) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	select {
	case <-b.proxy.gate():
		return n, err
	case <-b.proxy.closed:
		return 0, io.ErrUnexpectedEOF
	}
}

// discard is a response writer that drops the response.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
func (d discard) Flush()                      {}
