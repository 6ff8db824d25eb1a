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
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// heldMost limits how many connections are held until [Link.Expect] is called.
const heldMost = 16

// helloWithin limits how long a supervisor may take to send its Hello.
const helloWithin = 10 * time.Second

// Secrets gets the values of secrets. It must return within seconds.
type Secrets = func(ctx context.Context) ([]control.Secret, error)

// Config configures a [Link].
//
// The callbacks may be nil. They are called one at a time from one goroutine, in the order of events. They may take a
// long time: neither an exec nor a pending Start waits for them. They must not call [Link.Close].
type Config struct {
	ControlDir string   // path on the host of the container's control directory
	Run        *os.Root // the run directory on the host, with the files that the supervisor writes
	Welcome    control.Welcome

	// Lease returns the time until which the worker may change the sandbox, or an error if the worker must not change
	// it. If Lease is nil, the worker may always change the sandbox. The link calls Lease when it writes a command,
	// because the worker may have been paused before. The command carries the time, because the supervisor may be
	// paused before it reads the command.
	Lease func() (until time.Duration, err error)

	// Secrets gets the secrets of the container's spec. The link calls it during the handshake with a supervisor that has
	// not had a Welcome yet. It is nil if the spec names no secrets.
	Secrets Secrets

	OnConnect    func(control.Hello) // called after the handshake; the Hello lists all execs
	OnDisconnect func()              // called after the connection has ended; a supervisor that still runs dials again
	OnOutput     func(control.Output)
	OnEnd        func(control.Result)
	OnPrimary    func(control.Primary)

	Logger *slog.Logger
}

// Link is the worker's connection to the supervisor of one sandbox. It remains usable when the connection breaks,
// because the supervisor then dials again.
type Link struct {
	config   Config
	files    *outFiles
	listener *net.UnixListener
	calls    *calls
	running  sync.WaitGroup
	open     context.Context // ends with Close
	end      context.CancelFunc

	mu      sync.Mutex
	closed  bool
	pid     int             // the supervisor's pid; 0: not known yet
	held    []*net.UnixConn // connections that wait until pid is known
	pending *session        // the newest accepted connection
	current *session        // the connection whose handshake is done
	hello   control.Hello
	refused error         // why the newest handshake failed, if the container's secrets were the reason
	changed chan struct{} // closed and replaced when current or closed changes

	prepared map[string]*prepared // prepared files, by exec
}

// Listen creates the socket, which replaces an old one, and begins to accept connections.
func Listen(config Config) (*Link, error) {
	if len(config.Welcome.Key) == 0 || config.Run == nil {
		return nil, errors.New("supervise: Welcome.Key and Run must be set")
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
	l := &Link{
		config:   config,
		files:    files,
		listener: listener,
		calls:    newCalls(),
		changed:  make(chan struct{}),
		prepared: map[string]*prepared{},
	}
	l.open, l.end = context.WithCancel(context.Background())
	l.running.Go(l.calls.run)
	l.running.Go(l.accept)
	return l, nil
}

// listen binds the socket through a descriptor of its directory, because the path of a socket is limited to 107 bytes
// and the directory's path may be longer.
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
	listener.SetUnlinkOnClose(false) // a newer link may have created its own socket by then
	if err := errors.Join(os.Chmod(path, 0o600), bounded(listener)); err != nil {
		listener.Close()
		return nil, fmt.Errorf("supervise: %w", err)
	}
	return listener, nil
}

// bounded limits how many connections the kernel queues until they are accepted. The default is thousands.
func bounded(listener *net.UnixListener) error {
	raw, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	ctrlErr := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), backlog) })
	return errors.Join(ctrlErr, err)
}

// Expect sets the pid, on this host, of the process that may connect: the container's init, which is the supervisor.
// The connections of other processes are closed, even the current connection. The link has held the connections that
// arrived before the first call of Expect, and checks them now.
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

// Any process in the sandbox may dial endlessly. The following constants limit how much work such a process causes for
// the worker.
const (
	backlog     = 128 // maximum number of connections that the kernel queues
	strangeRest = 100 * time.Millisecond
	strangeMost = 8 // number of refused connections after which accept pauses for strangeRest
)

// accept accepts connections until the listener is closed. It pauses after strangeMost refused connections. A process
// that dials endlessly then has to wait, and costs the worker little.
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
		if err != nil { // for example too many open files; the connection waits in the kernel's queue
			l.config.Logger.Warn("could not accept a connection on the supervisor's socket; retrying", "error", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		l.mu.Lock()
		switch {
		case l.closed, l.pid == 0 && len(l.held) >= heldMost:
			packet.Release(conn) // a supervisor will dial again
			refused++
		case l.pid == 0:
			l.held = append(l.held, conn)
		case !l.admit(conn):
			refused++
		}
		l.mu.Unlock()
	}
}

// admit begins a session if the connection is from the expected process, and otherwise refuses the connection. The new
// session replaces an older session. The caller holds l.mu.
func (l *Link) admit(conn *net.UnixConn) (expected bool) {
	pid, err := peer(conn)
	if err != nil || pid != l.pid {
		l.config.Logger.Warn("refused a connection on the supervisor's socket: the process is not the supervisor",
			"pid", pid, "expected", l.pid)
		packet.Release(conn) // any process of the container may have connected, and sent anything
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

// peer returns the pid of the process that connected, as the kernel reports it.
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

// serve runs a session from the handshake to its end.
func (l *Link) serve(s *session) {
	defer s.end()
	hello, err := s.handshake(l.open, l.config.Welcome, l.files, l.config.Secrets)
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		l.mu.Lock()
		l.refused = refused.error
		l.signal()
		l.mu.Unlock()
	}
	if err != nil {
		l.config.Logger.Warn("the handshake with the supervisor failed; the supervisor will dial again", "error", err)
		return
	}
	if !l.install(s, hello) {
		return
	}
	s.writing.Go(s.write)
	err = s.read(l.dispatch)
	l.uninstall(s)
	l.config.Logger.Debug("the connection to the supervisor ended", "error", err)
}

func (l *Link) install(s *session, hello control.Hello) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.pending != s {
		return false
	}
	if l.current != nil { // uninstall skips this call for the older session, which is no longer current
		l.calls.add(l.config.OnDisconnect)
	}
	l.pending, l.current, l.hello, l.refused = nil, s, hello, nil
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

// dispatch queues the callback for a notice.
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

// Connected waits until the supervisor is connected, and returns its latest Hello. The error is unavailable if ctx ends
// first or the link is closed. If the supervisor could not get the container's secrets, Connected returns the reason.
func (l *Link) Connected(ctx context.Context) (control.Hello, error) {
	_, hello, err := l.session(ctx)
	return hello, err
}

// Refused returns why the supervisor could not get the container's secrets, or nil.
func (l *Link) Refused() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// Up reports whether the supervisor is connected now.
func (l *Link) Up() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current != nil
}

func (l *Link) session(ctx context.Context) (*session, control.Hello, error) {
	for {
		l.mu.Lock()
		s, hello, closed, refused, changed := l.current, l.hello, l.closed, l.refused, l.changed
		l.mu.Unlock()
		switch {
		case closed:
			return nil, hello, errLinkClosed
		case s != nil:
			return s, hello, nil
		case refused != nil:
			return nil, hello, refused
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, hello, unavailable(ctx)
		}
	}
}

// Close ends the connection, stops listening, and returns when no callback runs any more. Requests without an answer
// fail with unavailable. The supervisor and its execs continue to run.
func (l *Link) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.signal()
	}
	l.end()
	packet.Release(l.listener) // closes the connections that wait, too
	for _, s := range []*session{l.pending, l.current} {
		if s != nil {
			s.conn.Close()
		}
	}
	for _, conn := range l.held {
		packet.Release(conn)
	}
	l.held = nil
	l.mu.Unlock()
	l.calls.close()
	l.running.Wait()
	l.files.close()
}
