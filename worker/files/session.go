package files

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

const (
	// most is the maximum number of operations of a session at the same time, each of which has a helper. A reader of a
	// regular file and a connection need no helper once they are open.
	most = 4
	// idleFor is how long a helper may be idle before it ends. It takes about 6 MB of the sandbox's memory.
	idleFor = 30 * time.Second
)

// Config configures a [Session].
type Config struct {
	// Start starts a helper, and returns the connection to it.
	Start func(ctx context.Context) (*net.UnixConn, error)
	// Lease returns an error if the worker must not change the sandbox now. A session asks before each operation that
	// changes something, and before it completes a write. nil: it may always change the sandbox.
	Lease func() error
	// Container is the directory of the container's PID 1 in /proc, which the session closes. With it, the session sets
	// owners for helpers whose users may not; the sockets of Start then need the option SO_PASSCRED. nil: helpers alone
	// set owners.
	Container *os.Root
}

// Session works on the files of one container as one user. Its methods may be called by several goroutines. Each
// operation ends when its context ends, so give it a deadline: a hostile container may never answer.
//
// Operations return errors of the type [protocol.Error]:
//   - invalid_argument, with the field of the request
//   - not_found path_not_found; already_exists path_exists; permission_denied path_denied
//   - failed_precondition is_directory, not_directory, not_regular, not_empty, link_loop, read_only, file_busy,
//     no_match, several_matches, file_changed
//   - resource_exhausted disk_full, too_large, or start_failed if the container has no room for a helper
//   - failed_precondition user_unknown, sandbox_stopping, or unsupported if the supervisor is too old
//   - unavailable interrupted if the helper ended; whether a change was made is then unknown
//   - deadline_exceeded or cancelled if ctx ended; whether a change was made is then unknown, too
type Session struct {
	config Config
	slots  chan struct{} // one entry for each operation
	ended  context.Context
	end    context.CancelFunc

	mu   sync.Mutex
	idle []*helper // the last one was used last
}

// New returns a session. It starts no helper yet.
func New(config Config) *Session {
	s := &Session{config: config, slots: make(chan struct{}, most)}
	s.ended, s.end = context.WithCancel(context.Background())
	return s
}

// Close ends the session's helpers and its operations. Readers and connections that are open stay open.
func (s *Session) Close() {
	s.mu.Lock()
	s.end()
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, h := range idle {
		h.close()
	}
	if s.config.Container != nil {
		s.config.Container.Close()
	}
}

// EndIdle ends the helpers that are idle, to make room for those of another session. It reports whether there were any.
func (s *Session) EndIdle() bool {
	s.mu.Lock()
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, h := range idle {
		h.close()
	}
	return len(idle) > 0
}

// helper is the connection to one helper. One operation at a time uses it.
type helper struct {
	s     *Session
	link  *packet.Conn
	timer *time.Timer // ends the helper when it was idle for long enough
	stop  func() bool // ends the watch over the operation's context
}

// take returns a helper for one operation, which the operation gives back with done. When ctx ends, the helper's
// connection fails.
func (s *Session) take(ctx context.Context) (*helper, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ended(ctx)
	case <-s.ended.Done():
		return nil, errClosed
	}
	h, err := s.idleOrNew(ctx)
	if err != nil {
		<-s.slots
		return nil, err
	}
	closed := context.AfterFunc(s.ended, func() { h.link.Close() })
	cancelled := context.AfterFunc(ctx, func() { h.link.Close() })
	h.stop = func() bool { a, b := closed(), cancelled(); return a && b }
	return h, nil
}

var errClosed = protocol.Errorf(protocol.Unavailable, protocol.ReasonInterrupted,
	"the connection to the sandbox's files was closed")

func (s *Session) idleOrNew(ctx context.Context) (*helper, error) {
	for {
		s.mu.Lock()
		if s.ended.Err() != nil {
			s.mu.Unlock()
			return nil, errClosed
		}
		last := len(s.idle) - 1
		if last < 0 {
			s.mu.Unlock()
			break
		}
		h := s.idle[last]
		s.idle = s.idle[:last]
		s.mu.Unlock()
		h.timer.Stop()
		if h.alive() {
			return h, nil
		}
		h.close()
	}
	conn, err := s.config.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &helper{s: s, link: packet.New(conn)}, nil
}

// done gives the helper back. clean says that the helper waits for its next operation.
func (h *helper) done(clean bool) {
	s := h.s
	if clean = h.stop() && clean; !clean {
		h.close()
	}
	s.mu.Lock()
	switch {
	case !clean:
	case s.ended.Err() != nil:
		h.close()
	default:
		s.idle = append(s.idle, h)
		h.timer = time.AfterFunc(idleFor, func() { s.expire(h) })
	}
	s.mu.Unlock()
	<-s.slots
}

// expire ends a helper that is still idle.
func (s *Session) expire(h *helper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.idle {
		if other == h {
			s.idle = append(s.idle[:i], s.idle[i+1:]...)
			h.close()
			return
		}
	}
}

func (h *helper) close() {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.link.Close()
}

// alive reports whether an idle helper is still connected, and has sent nothing that nobody asked for.
func (h *helper) alive() bool {
	raw, err := h.link.Socket().SyscallConn()
	if err != nil {
		return false
	}
	var n int
	ctrlErr := raw.Control(func(fd uintptr) {
		n, _, err = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return ctrlErr == nil && errors.Is(err, unix.EAGAIN) && n <= 0
}

// ended is the error of an operation whose context ended.
func ended(ctx context.Context) *protocol.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonTimeout,
			"the operation on the sandbox's files did not end within its time limit")
	}
	return protocol.Errorf(protocol.Cancelled, protocol.ReasonCancelRequested,
		"the operation on the sandbox's files was cancelled")
}

// broken is the error of an operation whose connection failed.
func (s *Session) broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ended(ctx)
	case s.ended.Err() != nil:
		return errClosed
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonInterrupted,
		"the process that works on the sandbox's files ended, or sent an invalid answer: %v", err)
}
