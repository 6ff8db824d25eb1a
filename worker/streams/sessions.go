package streams

import (
	"context"
	"sync"

	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/files"
)

// sessions are the sessions with helpers in containers. Requests share them, because the start of a helper takes longer
// than most operations. A session ends its helpers by itself when they are idle, and is closed with its container.
type sessions struct {
	mu     sync.Mutex
	closed bool
	byKey  map[sessionKey]*session
	ending sync.WaitGroup
	stop   chan struct{} // closed by close
}

type sessionKey struct {
	container *attach.Attachment
	user, cwd string
}

type session struct {
	*files.Session
	users   int
	gone    bool          // its container has ended, or it was dropped because nobody used it
	dropped chan struct{} // closed when it is dropped because nobody used it
}

func newSessions() *sessions {
	return &sessions{byKey: map[sessionKey]*session{}, stop: make(chan struct{})}
}

// mostUnused is how many sessions without a user are kept for one server.
const mostUnused = 256

// get returns a session. The caller must call release when it no longer needs the session. Errors: those of
// [github.com/boxfleet/boxfleet/worker/supervise.Link.Files].
func (s *sessions) get(ctx context.Context, a *attach.Attachment, user, cwd string) (
	_ *files.Session, release func(), err error) {
	key := sessionKey{a, user, cwd}
	if found := s.use(key); found != nil {
		return found.Session, func() { s.release(found) }, nil
	}
	made, err := a.Link.Files(ctx, user, cwd)
	if err != nil {
		return nil, nil, err
	}
	found := s.keep(key, made)
	return found.Session, func() { s.release(found) }, nil
}

func (s *sessions) use(key sessionKey) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.byKey[key]
	if found != nil {
		found.users++
	}
	return found
}

// keep stores a new session and returns it. If another call has stored a session for the same key meanwhile, keep
// closes the new one and returns the other.
func (s *sessions) keep(key sessionKey, made *files.Session) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.byKey[key]; found != nil {
		made.Close()
		found.users++
		return found
	}
	kept := &session{Session: made, users: 1, dropped: make(chan struct{})}
	if s.closed {
		made.Close() // its operations fail
		return kept
	}
	s.dropUnusedLocked()
	s.byKey[key] = kept
	s.ending.Go(func() {
		select {
		case <-key.container.Done():
		case <-kept.dropped:
		case <-s.stop:
		}
		s.drop(key, kept)
	})
	return kept
}

func (s *sessions) dropUnusedLocked() {
	if len(s.byKey) < mostUnused {
		return
	}
	for key, found := range s.byKey {
		if found.users == 0 {
			found.Close()
			found.gone = true
			close(found.dropped)
			delete(s.byKey, key)
		}
	}
}

// makeRoom ends the idle helpers in a container.
func (s *sessions) makeRoom(a *attach.Attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, found := range s.byKey {
		if key.container == a {
			found.EndIdle()
		}
	}
}

func (s *sessions) drop(key sessionKey, kept *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !kept.gone {
		kept.gone = true
		kept.Close()
	}
	if s.byKey[key] == kept {
		delete(s.byKey, key)
	}
}

func (s *sessions) release(used *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used.users--
}

// close closes all sessions.
func (s *sessions) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	s.ending.Wait()
}
