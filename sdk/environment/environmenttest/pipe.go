package environmenttest

import (
	"context"
	"slices"
	"sync"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

const (
	// chunkBytes is how many bytes of output one event has at most.
	chunkBytes = 32 << 10
	// pipeBytes is how many bytes a command may print before the caller's loop takes them, as with a pipe of Linux.
	pipeBytes = 64 << 10
)

// pipe carries what a command prints to the caller's loop.
type pipe struct {
	ctx   context.Context // its end ends writes
	ready chan struct{}   // has an element if there may be output
	space chan struct{}   // has an element if there may be space

	mu     sync.Mutex
	events []environment.Event
	bytes  int
}

func newPipe(ctx context.Context) *pipe {
	return &pipe{ctx: ctx, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// signal puts an element into a channel unless it has one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds the part of data that fits, and returns its length.
func (p *pipe) put(stream environment.Stream, data []byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(data), chunkBytes, pipeBytes-p.bytes)
	if n == 0 {
		return 0
	}
	last := len(p.events) - 1
	if last >= 0 && p.events[last].Stream == stream && len(p.events[last].Data)+n <= chunkBytes {
		p.events[last].Data = append(p.events[last].Data, data[:n]...)
	} else {
		p.events = append(p.events, environment.Event{Stream: stream, Data: slices.Clone(data[:n])})
	}
	p.bytes += n
	signal(p.ready)
	if p.bytes < pipeBytes {
		signal(p.space) // another goroutine may wait for it
	}
	return n
}

// take returns the output so far.
func (p *pipe) take() []environment.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.events
	p.events, p.bytes = nil, 0
	signal(p.space)
	return taken
}

// printer is one end of a pipe.
type printer struct {
	p      *pipe
	stream environment.Stream
}

func (w printer) Write(data []byte) (int, error) {
	sent := 0
	for sent < len(data) {
		if err := w.p.ctx.Err(); err != nil {
			return sent, err
		}
		n := w.p.put(w.stream, data[sent:])
		if sent += n; n > 0 {
			continue
		}
		select {
		case <-w.p.space:
		case <-w.p.ctx.Done():
		}
	}
	return sent, nil
}
