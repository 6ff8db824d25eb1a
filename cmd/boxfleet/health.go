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
	parts map[string]func() (well bool, text string)
}

// part adds a part of the process. The part reports its own health by calling say.
func (h *health) part(name string) (say func(well bool, text string)) {
	var mu sync.Mutex
	well, text := false, "starting"
	h.add(name, func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return well, text
	})
	return func(w bool, t string) {
		mu.Lock()
		defer mu.Unlock()
		well, text = w, t
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

func (h *health) add(name string, ask func() (bool, string)) {
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

// line describes the health of all parts on one line.
func (h *health) line() (well bool, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	well = true
	texts := make([]string, len(h.names))
	for i, name := range h.names {
		ok, text := h.parts[name]()
		well = well && ok
		texts[i] = name + ": " + strings.Join(strings.Fields(text), " ")
	}
	return well, strings.Join(texts, "; ")
}

func (h *health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	well, text := h.line()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !well {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, text)
}

// serveHealth serves /healthz, if an address is configured, until stop is called.
func (srv *servers) serveHealth(h *health) (stop func(), err error) {
	if srv.config.Health == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", srv.config.Health)
	if err != nil {
		return nil, protocol.Invalid("health", "must be HOST:PORT where this process can listen: %v", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", h)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(l) }() // Serve returns when stop is called
	srv.say("health: http://%s/healthz", l.Addr())
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	}, nil
}
