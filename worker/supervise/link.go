package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

// heldMost bounds the connections that wait for [Link.Expect].
const heldMost = 16

// helloWithin is how long a supervisor may take to say Hello on a connection.
const helloWithin = 10 * time.Second

// Config says where to listen, and whom to tell.
//
// The callbacks may be nil. They are called one at a time from one goroutine, in the order of what
// happened, and may take their time: neither an exec nor a pending Start waits for them. They must
// not call Close.
type Config struct {
	ControlDir string   // on the host; mounted into the container as the control directory
	Run        *os.Root // the run directory, on the host: the files that the supervisor writes are made there
	Welcome    control.Welcome

	// Lease says until when something may be changed in the sandbox, or why not; nil: always. It is asked
	// as a command is written, and the supervisor is told the moment, since either side may be stopped
	// before the other has read.
	Lease func() (until time.Duration, err error)

	OnConnect    func(control.Hello) // the handshake is done; the Hello has all execs
	OnDisconnect func()              // that connection has ended; the supervisor will dial again if it lives
	OnOutput     func(control.Output)
	OnEnd        func(control.Result)
	OnPrimary    func(control.Primary)

	Logger *slog.Logger
}

// Link is the connection to the supervisor of one sandbox, over all its reconnects.
type Link struct {
	config   Config
	files    *outFiles
	listener *net.UnixListener
	calls    *calls
	running  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	pid     int             // expected; 0: not known yet
	held    []*net.UnixConn // waiting for it
	pending *session        // newest accepted connection
	current *session        // welcomed connection
	hello   control.Hello
	changed chan struct{} // closed and made anew when current or closed change

	prepared map[string]*prepared // by exec
}

// Listen makes the socket and begins to accept. An old socket of that name is removed.
func Listen(config Config) (*Link, error) {
	if len(config.Welcome.Key) == 0 || config.Run == nil {
		return nil, errors.New("supervise: the welcome needs a key, and the supervisor's files a directory")
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	config.Welcome.Version = control.Version
	files, err := openOutFiles(config.Run)
	if err != nil {
		return nil, err
	}
	listener, err := listen(config.ControlDir)
	if err != nil {
		files.close()
		return nil, err
	}
	l := &Link{config: config, files: files, listener: listener, calls: newCalls(), changed: make(chan struct{}), prepared: map[string]*prepared{}}
	l.running.Go(l.calls.run)
	l.running.Go(l.accept)
	return l, nil
}

// listen binds through the directory's descriptor: the path of a socket has at most 107 bytes, and
// a state directory may be deeper.
func listen(dir string) (*net.UnixListener, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("supervise: open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	if err := unix.Unlinkat(fd, control.SocketName, 0); err != nil && err != unix.ENOENT {
		return nil, fmt.Errorf("supervise: remove the old socket in %s: %w", dir, err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d/%s", fd, control.SocketName)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("supervise: listen in %s: %w", dir, err)
	}
	listener.SetUnlinkOnClose(false) // a newer link may have made its own by then
	if err := errors.Join(os.Chmod(path, 0o600), bounded(listener)); err != nil {
		listener.Close()
		return nil, fmt.Errorf("supervise: %w", err)
	}
	return listener, nil
}

// bounded has the kernel hold so many connections that wait to be accepted, and not thousands.
func bounded(listener *net.UnixListener) error {
	raw, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	ctrlErr := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), backlog) })
	return errors.Join(ctrlErr, err)
}

// Expect says which process may be the supervisor: the container's init, by its pid on this host.
// Connections of others are closed, the present one included if it is another's. Connections that
// came before are held until now.
func (l *Link) Expect(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pid = pid
	held := l.held
	l.held = nil
	for _, s := range []*session{l.pending, l.current} {
		if s != nil && s.pid != pid {
			s.conn.Close()
		}
	}
	for _, conn := range held {
		l.admit(conn)
	}
}

// Anything in the sandbox may dial, as often as it likes.
const (
	backlog     = 128 // connections that wait in the kernel
	strangeRest = 100 * time.Millisecond
	strangeMost = 8 // strangers, or connections too many, between two rests
)

// accept takes connections. Those that are refused are as many as strangeMost allows: who dials without end
// waits, and costs the worker nothing.
func (l *Link) accept() {
	for refused := 0; ; {
		if refused >= strangeMost {
			time.Sleep(strangeRest)
			refused = 0
		}
		conn, err := l.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: the peer's backlog waits
			l.config.Logger.Warn("accept a supervisor", "error", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		l.mu.Lock()
		switch {
		case l.closed, l.pid == 0 && len(l.held) >= heldMost:
			conn.Close() // a supervisor dials again
			refused++
		case l.pid == 0:
			l.held = append(l.held, conn)
		case !l.admit(conn):
			refused++
		}
		l.mu.Unlock()
	}
}

// admit begins a session with the expected process, in place of an older one, and refuses others. l.mu is
// held.
func (l *Link) admit(conn *net.UnixConn) (expected bool) {
	pid, err := peer(conn)
	if err != nil || pid != l.pid {
		l.config.Logger.Warn("a stranger dialled the supervisor's socket", "pid", pid, "expected", l.pid)
		conn.Close()
		return false
	}
	if l.pending != nil {
		l.pending.conn.Close()
	}
	if l.current != nil {
		l.current.conn.Close()
	}
	s := newSession(conn, pid, l.config.Lease)
	l.pending = s
	l.running.Go(func() { l.serve(s) })
	return true
}

// peer asks the kernel who connected.
func peer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	ctrlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(ctrlErr, err); err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// serve carries a session from the handshake to its end.
func (l *Link) serve(s *session) {
	defer s.end()
	hello, err := s.handshake(l.config.Welcome, l.files)
	if err != nil {
		l.config.Logger.Warn("a supervisor's handshake failed", "error", err)
		return
	}
	if !l.install(s, hello) {
		return
	}
	s.writing.Go(s.write)
	err = s.read(l.dispatch)
	l.uninstall(s)
	l.config.Logger.Debug("the supervisor's connection ended", "error", err)
}

func (l *Link) install(s *session, hello control.Hello) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.pending != s {
		return false
	}
	if l.current != nil { // its uninstall finds that it is no longer the one
		l.calls.add(l.config.OnDisconnect)
	}
	l.pending, l.current, l.hello = nil, s, hello
	for i := range hello.Execs {
		if hello.Execs[i].Result != nil {
			l.files.sets.ended(hello.Execs[i].ID)
		}
	}
	if l.config.OnConnect != nil {
		l.calls.add(func() { l.config.OnConnect(hello) })
	}
	l.signal()
	return true
}

func (l *Link) uninstall(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != s {
		return
	}
	l.current = nil
	l.calls.add(l.config.OnDisconnect)
	l.signal()
}

func (l *Link) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// dispatch hands a notice to its callback.
func (l *Link) dispatch(n *control.Notice) {
	if n.Result != nil {
		l.files.sets.ended(n.Result.ID)
	}
	switch {
	case n.Output != nil && l.config.OnOutput != nil:
		l.calls.addOutput(*n.Output, l.config.OnOutput)
	case n.Result != nil && l.config.OnEnd != nil:
		l.calls.add(func() { l.config.OnEnd(*n.Result) })
	case n.Primary != nil && l.config.OnPrimary != nil:
		l.calls.add(func() { l.config.OnPrimary(*n.Primary) })
	}
}

// Connected waits until the supervisor is there and returns its latest Hello. The error is
// unavailable when ctx ends first, or the link is closed.
func (l *Link) Connected(ctx context.Context) (control.Hello, error) {
	_, hello, err := l.session(ctx)
	return hello, err
}

// Up says whether the supervisor is connected now.
func (l *Link) Up() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current != nil
}

func (l *Link) session(ctx context.Context) (*session, control.Hello, error) {
	for {
		l.mu.Lock()
		s, hello, closed, changed := l.current, l.hello, l.closed, l.changed
		l.mu.Unlock()
		if closed {
			return nil, hello, errLinkClosed
		}
		if s != nil {
			return s, hello, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, hello, unavailable(ctx)
		}
	}
}

// Close ends the connection and the listening, and returns when no callback runs any more. What
// was asked and not answered fails with unavailable. The supervisor goes on.
func (l *Link) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.signal()
	}
	l.listener.Close()
	for _, s := range []*session{l.pending, l.current} {
		if s != nil {
			s.conn.Close()
		}
	}
	for _, conn := range l.held {
		conn.Close()
	}
	l.held = nil
	l.mu.Unlock()
	l.calls.close()
	l.running.Wait()
	l.files.close()
}
