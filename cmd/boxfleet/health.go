package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// health collects the health of the parts of a process and serves it over HTTP.
type health struct {
	mu    sync.Mutex
	names []string
	parts map[string]func() (ready bool, text string)
	loops map[string]time.Time // for each main loop: the time by which it must turn again
}

// part is one part of the process: a role, or its connection. It reports its own health.
type part struct {
	of   *health
	name string

	mu    sync.Mutex
	ready bool
	text  string
}

// part adds a part of the process.
func (h *health) part(name string) *part {
	p := &part{of: h, name: name, text: "starting"}
	h.add(name, func() (bool, string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.ready, p.text
	})
	return p
}

// say records whether the part can do its work, and what it does or waits for.
func (p *part) say(ready bool, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready, p.text = ready, text
}

// turn records that a main loop of the part has turned, and turns again within the given time. A time of 0 means that
// the loop has ended.
func (p *part) turn(loop string, next time.Duration) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.of.loops == nil {
		p.of.loops = map[string]time.Time{}
	}
	if loop = p.name + ", " + loop; next == 0 {
		delete(p.of.loops, loop)
	} else {
		p.of.loops[loop] = time.Now().Add(next)
	}
}

// connection adds the connection to NATS as a part.
func (h *health) connection(conn *jetstream.Conn) {
	h.add("NATS", func() (bool, string) {
		if err := conn.Health(); err != nil {
			return false, err.Error()
		}
		if n := conn.Refused(); n > 0 {
			return true, fmt.Sprintf("connected; refused messages of the event log %d times", n)
		}
		return true, "connected"
	})
}

func (h *health) add(name string, ask func() (ready bool, text string)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parts == nil {
		h.parts = map[string]func() (bool, string){}
	}
	if !slices.Contains(h.names, name) {
		h.names = append(h.names, name)
	}
	h.parts[name] = ask
}

// readiness says on one line whether all parts can do their work.
func (h *health) readiness() (ready bool, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ready = true
	texts := make([]string, len(h.names))
	for i, name := range h.names {
		ok, text := h.parts[name]()
		ready = ready && ok
		texts[i] = name + ": " + strings.Join(strings.Fields(text), " ")
	}
	return ready, strings.Join(texts, "; ")
}

// liveness says on one line whether the main loops turn. A loop turns even while it waits for NATS or for the engine.
func (h *health) liveness() (alive bool, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var stuck []string
	for loop, by := range h.loops {
		if late := time.Since(by); late > 0 {
			stuck = append(stuck, fmt.Sprintf("%s: the loop is stuck, %s longer than it may take: restart this process", loop,
				late.Round(time.Second)))
		}
	}
	slices.Sort(stuck)
	if len(stuck) > 0 {
		return false, strings.Join(stuck, "; ")
	}
	return true, fmt.Sprintf("alive: main loops that turn: %d", len(h.loops))
}

// Limits of the health server. Its questions and answers are small.
const (
	healthWithin = 5 * time.Second
	healthHeader = 8 << 10 // bytes
	healthAtOnce = 100     // connections; more wait, so that they do not use up the files that the process may open
)

// limitedListener accepts at most cap(open) connections at a time.
type limitedListener struct {
	net.Listener
	open chan struct{}
}

func (l limitedListener) Accept() (net.Conn, error) {
	l.open <- struct{}{}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.open
		return nil, err
	}
	return &limitedConn{Conn: c, closed: sync.OnceFunc(func() { <-l.open })}, nil
}

type limitedConn struct {
	net.Conn
	closed func()
}

func (c *limitedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// serveHealth serves /healthz and /readyz, if an address is configured, until stop is called. After the end of ctx, the
// process is not ready.
func (srv *servers) serveHealth(ctx context.Context, h *health) (stop func(), err error) {
	if srv.config.HealthListen == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", srv.config.HealthListen)
	if err != nil {
		return nil, protocol.Invalid("health_listen", "must be a HOST:PORT that is free on this machine: %v", err)
	}
	readiness := func() (bool, string) {
		if ctx.Err() != nil {
			return false, "this process is stopping"
		}
		return h.readiness()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answerHealth(h.liveness))
	mux.HandleFunc("GET /readyz", answerHealth(readiness))
	server := &http.Server{Handler: http.MaxBytesHandler(mux, healthHeader), MaxHeaderBytes: healthHeader,
		ReadTimeout: healthWithin, WriteTimeout: healthWithin}
	server.SetKeepAlivesEnabled(false) // an idle connection would keep others waiting
	l = limitedListener{l, make(chan struct{}, healthAtOnce)}
	go func() { _ = server.Serve(l) }() // Serve returns when stop is called
	srv.say("health: http://%[1]s/healthz and http://%[1]s/readyz", l.Addr())
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // the process ends, and the kernel closes what is left
		}
	}, nil
}

// answerHealth answers with status 200 if all is well, else 503, and the reason as text.
func answerHealth(ask func() (well bool, text string)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		well, text := ask()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if !well {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, text)
	}
}
