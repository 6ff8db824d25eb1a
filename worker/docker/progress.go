package docker

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// DefaultStallTimeout is the default of [Config.StallTimeout].
const DefaultStallTimeout = time.Minute

// transferLimit is the maximum duration of a transfer.
const transferLimit = time.Hour

// errStalled is the cause when a transfer is cancelled because it makes no progress.
var errStalled = errors.New("no progress for too long")

// progress cancels the context of a transfer after a time without progress. The field stall is that time. A fixed
// deadline would be wrong, because the duration of a transfer depends on its size.
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

// cause returns errStalled if a stall caused err, and err otherwise.
func cause(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// source is a request's body. It reports the progress of reading, and keeps the error of the caller's reader, so that
// this error is not mistaken for an error of the engine. The HTTP transport may read the body for a moment after the
// call has returned. After close, such reads no longer use the caller's reader.
type source struct {
	moved func()

	mu     sync.Mutex
	r      io.Reader
	err    error // the error of the caller's reader
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
