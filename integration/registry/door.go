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

// Fault is what happens to a request at a door. The zero value lets it pass.
type Fault struct {
	Status    int           // answer with this
	Body      string        // and this
	StallAt   int           // pass on so many bytes of the answer, and then nothing more
	PerSecond int           // pass on so many bytes a second
	Delay     time.Duration // wait first
}

// Door is an address of a registry.
type Door struct {
	Host string // 127.0.0.1 and port, the first part of references

	closed chan struct{}
	mu     sync.Mutex
	passed []string // method and path
	fault  func(*http.Request) Fault
	gone   int // requests that their client gave up
}

// Open opens a door that listens on l, until the test ends.
func (r *Registry) Open(l net.Listener) *Door {
	d := &Door{Host: l.Addr().String(), closed: make(chan struct{})}
	transport := r.transport()
	forward := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "registry"
			p.Out.Host = p.In.Host // the registry's answers lead back to this door
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
				_, _ = io.WriteString(w, f.Body)
				return
			}
			forward.ServeHTTP(w, q)
		})}
	go func() { _ = server.Serve(l) }()
	r.tb.Cleanup(func() {
		close(d.closed)
		_ = server.Close()
		transport.CloseIdleConnections()
	})
	return d
}

// Fault has each request treated as f says; nil lets all pass.
func (d *Door) Fault(f func(*http.Request) Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

// Layers is for [Door.Fault]: what is said happens to the downloads of layers.
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

// Passed counts the requests whose "METHOD path" has all of the parts, since the start.
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

// GivenUp counts the slowed downloads that their client ended early.
func (d *Door) GivenUp() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone
}

// pause waits, and says whether the client is still there.
func (d *Door) pause(q *http.Request, t time.Duration) bool {
	select {
	case <-time.After(t):
		return true
	case <-q.Context().Done():
	case <-d.closed:
	}
	return false
}

// slowed is an answer's body that comes slowly, or stops coming.
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
		const pieces = 20 // a second
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
