package sdk

import (
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"slices"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// PortEvent is what [Sandbox.WatchPorts] reports about a TCP port of a sandbox.
type PortEvent = protocol.PortEvent

// WatchPorts waits until the sandbox is ready, and then reports the TCP ports on which processes of the sandbox's
// primary container or, with [WithService], of a service listen. First come the ports with a server, then an event
// [protocol.PortWatching], and then each change, until ctx ends or the caller's loop ends. The sandbox's worker looks
// once a second, and only while somebody watches.
//
// WatchPorts continues after a restart of NATS, of the worker or of the container, and reports what has changed
// meanwhile.
//
// Options: [WithService]. Errors: invalid_argument with field service; not_found; the error of a sandbox that failed;
// failed_precondition if the sandbox stops; unavailable if the worker is away for longer than the SDK waits for
// answers, or is too old; resource_exhausted with reason too_many_streams after 16 watches in a container, or too_large
// after [protocol.MaxPortListeners] addresses; permission_denied; deadline_exceeded or cancelled if ctx ended.
func (s *Sandbox) WatchPorts(ctx context.Context, opts ...PortOption) iter.Seq2[PortEvent, error] {
	w := portWatch{s: s, request: protocol.PortWatch{Service: settingsOf(opts, PortOption.forPort).service}}
	return func(yield func(PortEvent, error) bool) {
		w := w
		w.yield = func(e PortEvent) bool { return yield(e, nil) }
		if err := w.run(ctx); err != nil {
			yield(PortEvent{}, failed(ctx, err, "watch the ports of sandbox "+s.ID()))
		}
	}
}

type portWatch struct {
	s       *Sandbox
	request protocol.PortWatch
	yield   func(PortEvent) bool

	known    map[int]bool // the ports that the caller knows as listening
	watching bool         // the caller knows all ports
}

// run opens a stream after another.
func (w *portWatch) run(ctx context.Context) error {
	if err := w.request.Validate(); err != nil {
		return err
	}
	if err := w.s.WaitReady(ctx); err != nil {
		return err
	}
	w.known = map[int]bool{}
	for {
		more, err := w.stream(ctx)
		if !more || err != nil && !isTransient(err) {
			return err
		}
		if !backoff.Sleep(ctx, retryPause) {
			return err
		}
	}
}

// stream reports the events of one stream. more says that the caller wants more events.
func (w *portWatch) stream(ctx context.Context) (more bool, err error) {
	o := opening{repeats: true,
		open: protocol.StreamOpen{Kind: protocol.StreamKindPorts, Request: protocol.Encode(&w.request)}}
	conn, _, err := o.do(ctx, w.s)
	if err != nil {
		return false, err
	}
	if conn == nil {
		return false, errNoAnswer
	}
	defer endWith(ctx, conn)()
	present := map[int]bool{} // the ports that this stream has named before its event watching
	for records := protocol.NewFileRecords(conn); ; {
		kind, body, err := records.Next()
		if errors.Is(err, io.EOF) {
			err = protocol.Errorf(protocol.Unavailable, protocol.ReasonStreamLost, "the worker ended the stream")
		}
		if err != nil {
			return true, err
		}
		var events protocol.PortEvents
		if kind != protocol.FileRecordAnswer || protocol.DecodeAs(protocol.ContentMsgpack, body, &events) != nil {
			return false, errNoAnswer
		}
		for _, e := range events.Events {
			if !w.event(e, &present) {
				return false, nil
			}
		}
	}
}

// event reports an event that is news to the caller.
func (w *portWatch) event(e PortEvent, present *map[int]bool) (more bool) {
	switch e.Kind {
	case protocol.PortListening:
		if *present != nil {
			(*present)[e.Port] = true
		}
		if w.known[e.Port] {
			return true
		}
		w.known[e.Port] = true
	case protocol.PortClosed:
		if !w.known[e.Port] {
			return true
		}
		delete(w.known, e.Port)
	case protocol.PortWatching:
		for _, port := range slices.Sorted(maps.Keys(w.known)) {
			if !(*present)[port] {
				delete(w.known, port)
				if !w.yield(PortEvent{Kind: protocol.PortClosed, Port: port}) {
					return false
				}
			}
		}
		*present = nil
		if w.watching {
			return true
		}
		w.watching = true
	}
	return w.yield(e)
}
