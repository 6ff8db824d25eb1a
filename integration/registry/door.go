package registry

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"
)

// Fault says what a door does to a request. The zero value lets the request pass.
type Fault struct {
	Status    int           // status of an answer that the door gives instead of the registry
	Body      string        // body of that answer
	StallAt   int           // the door passes on this many bytes of the answer, then stops
	PerSecond int           // the door passes on this many bytes per second
	Delay     time.Duration // the door waits for this time before it passes on the request
}

// Door is a proxy in front of a registry. Each door has its own address.
type Door struct {
	Host string // 127.0.0.1 and the port; references of images begin with it

	closed chan struct{}
	mu     sync.Mutex
	passed []string // "METHOD path" of each request
	fault  func(*http.Request) Fault
	gone   int // number of requests that the client aborted
}

// Open opens a door. It listens on l until the test ends.
func (r *Registry) Open(l net.Listener) *Door {
	d := &Door{Host: l.Addr().String(), closed: make(chan struct{})}
	transport := r.transport()
	forward := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "registry"
			p.Out.Host = p.In.Host // makes the registry's redirects lead back to this door
		},
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, q *http.Request, err error) {
			if q.Context().Err() == nil {
				r.tb.Logf("registry: %s %s: %v", q.Method, q.URL.Path, err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
		ModifyResponse: func(resp *http.Response) error {
			if f := d.faultOf(resp.Request); f.StallAt > 0 || f.PerSecond > 0 {
				resp.Body = &slowed{ReadCloser: resp.Body, fault: f, request: resp.Request, door: d}
			}
			return nil
		},
	}
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			d.mu.Lock()
			d.passed = append(d.passed, q.Method+" "+q.URL.Path)
			d.mu.Unlock()
			f := d.faultOf(q)
			d.pause(q, f.Delay)
			if f.Status != 0 {
				w.WriteHeader(f.Status)
				_, _ = io.WriteString(w, f.Body) // fails if the client is gone
				return
			}
			forward.ServeHTTP(w, q)
		})}
	go func() { _ = server.Serve(l) }() // returns when the server is closed
	r.tb.Cleanup(func() {
		close(d.closed)
		_ = server.Close() // the process ends soon, and the kernel closes what is left
		transport.CloseIdleConnections()
	})
	return d
}

// Fault makes the door apply the result of f to each request from now on. If f is nil, all requests pass.
func (d *Door) Fault(f func(*http.Request) Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

// Layers returns a function for [Door.Fault] that applies a fault only to downloads of layers.
func Layers(f Fault) func(*http.Request) Fault {
	return func(q *http.Request) Fault {
		if q.Method == http.MethodGet && strings.Contains(q.URL.Path, "/blobs/") {
			return f
		}
		return Fault{}
	}
}

func (d *Door) faultOf(q *http.Request) Fault {
	d.mu.Lock()
	f := d.fault
	d.mu.Unlock()
	if f == nil {
		return Fault{}
	}
	return f(q)
}

// Passed counts the requests so far with a "METHOD path" that contains all of the parts.
func (d *Door) Passed(parts ...string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
next:
	for _, line := range d.passed {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue next
			}
		}
		n++
	}
	return n
}

// GivenUp counts the slowed downloads that the client aborted.
func (d *Door) GivenUp() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone
}

// pause waits for t, and reports whether the client is still connected.
func (d *Door) pause(q *http.Request, t time.Duration) bool {
	select {
	case <-time.After(t):
		return true
	case <-q.Context().Done():
	case <-d.closed:
	}
	return false
}

// slowed is an answer body that arrives slowly or stops.
type slowed struct {
	io.ReadCloser
	fault   Fault
	request *http.Request
	door    *Door
	read    int
}

func (s *slowed) Read(p []byte) (int, error) {
	wait := time.Duration(0)
	switch f := s.fault; {
	case f.StallAt > 0 && s.read >= f.StallAt:
		wait = time.Hour
	case f.StallAt > 0:
		p = p[:min(len(p), f.StallAt-s.read)]
	default:
		const pieces = 20 // pieces of the answer per second
		p, wait = p[:min(len(p), max(f.PerSecond/pieces, 1))], time.Second/pieces
	}
	if !s.door.pause(s.request, wait) {
		s.door.mu.Lock()
		s.door.gone++
		s.door.mu.Unlock()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := s.ReadCloser.Read(p)
	s.read += n
	return n, err
}
