package worker

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/streams"
)

// serveStreams serves the streams of clients until ctx ends. If NATS refuses, serveStreams tries again: without streams
// the worker still runs sandboxes and execs.
func (w *worker) serveStreams(ctx context.Context) error {
	cfg := streams.Config{Worker: w.cfg.Name, Logger: w.log, Find: func(k protocol.SandboxKey) streams.Sandbox {
		if s := w.mailboxes.get(k); s != nil {
			return s
		}
		return nil
	}}
	for pause := backoff.New(streamsFirst, streamsMost); ; {
		err := streams.Serve(ctx, w.conn, cfg, pause.Reset)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.log.Warn("could not serve the streams of clients; retrying", "error", err)
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// Shortest and longest pause between two tries to serve streams.
const (
	streamsFirst = 100 * time.Millisecond
	streamsMost  = 5 * time.Second
)
