package docker

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// DefaultStallTimeout is how long a transfer may make no progress.
const DefaultStallTimeout = time.Minute

// transferLimit is the maximum duration of a transfer.
const transferLimit = time.Hour

// errStalled is the cause that ends a transfer without progress.
var errStalled = errors.New("no progress for too long")

// progress cancels a context after a time without progress. It is the deadline of calls whose duration depends on the
// size of the transfer.
type progress struct {
	stall time.Duration
	timer *time.Timer
	stop  context.CancelCauseFunc
}

func watchProgress(ctx context.Context, stall time.Duration) (context.Context, *progress) {
	ctx, stop := context.WithCancelCause(ctx)
	return ctx, &progress{stall: stall, stop: stop, timer: time.AfterFunc(stall, func() { stop(errStalled) })}
}

// moved records progress.
func (p *progress) moved() { p.timer.Reset(p.stall) }

// done releases the context.
func (p *progress) done() {
	p.timer.Stop()
	p.stop(nil)
}

// cause returns errStalled if err came from a stall, and err otherwise.
func cause(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// source is a request's body that reports its progress and keeps its own error apart from the engine's. The transport
// may continue to read for a moment after the call has returned; close stops it from using the caller's reader.
type source struct {
	moved func()

	mu     sync.Mutex
	r      io.Reader
	err    error // of the caller's reader
	closed bool
}

// Read implements [io.Reader].
func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	if n > 0 {
		s.moved()
	}
	return n, err
}

// close stops the reading and returns the error of the caller's reader.
func (s *source) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.err
}
