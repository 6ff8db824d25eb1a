package docker

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// DefaultStallTimeout is the longest that a transfer may stand still.
const DefaultStallTimeout = time.Minute

// transferLimit is the longest that a transfer may take at all.
const transferLimit = time.Hour

// errStalled is the cause of a transfer's end when nothing moved.
var errStalled = errors.New("nothing moved for too long")

// progress ends a context when nothing has moved for a while: the deadline of a call whose length
// depends on the size of what it carries.
type progress struct {
	stall time.Duration
	timer *time.Timer
	stop  context.CancelCauseFunc
}

func watchProgress(ctx context.Context, stall time.Duration) (context.Context, *progress) {
	ctx, stop := context.WithCancelCause(ctx)
	return ctx, &progress{stall: stall, stop: stop, timer: time.AfterFunc(stall, func() { stop(errStalled) })}
}

// moved says that something has come or gone.
func (p *progress) moved() { p.timer.Reset(p.stall) }

// done releases the context.
func (p *progress) done() {
	p.timer.Stop()
	p.stop(nil)
}

// cause returns why err came: the stall, when it was that which ended ctx.
func cause(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// source is a request's body that reports its progress and keeps its own error apart from the
// engine's. The transport may go on reading for a moment after the call has returned; closing it
// keeps the caller's reader out of that.
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

// close ends the reading and returns the caller's reader's error.
func (s *source) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.err
}
