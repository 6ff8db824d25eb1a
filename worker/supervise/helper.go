package supervise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/files"
)

// Files returns a session that works on the container's files as a user, "name|uid[:group|gid]"; "" stands for the
// container's default user. Relative paths begin at cwd; "" stands for the container's working directory. The caller
// must close the session, which may outlive a connection to the supervisor, but not the supervisor.
//
// Files waits until the supervisor is connected. Errors: unavailable; failed_precondition with reason unsupported if an
// older worker started the supervisor. Whether the user exists shows in the first operation.
func (l *Link) Files(ctx context.Context, user, cwd string) (*files.Session, error) {
	s, hello, err := l.session(ctx)
	if err != nil {
		return nil, err
	}
	if !hello.TakesHelp {
		return nil, errTooOldForFiles
	}
	container, err := s.container()
	if err != nil {
		return nil, err
	}
	return files.New(files.Config{
		Start:     func(ctx context.Context) (*net.UnixConn, error) { return l.help(ctx, user, cwd) },
		Lease:     l.mayChange,
		Container: container,
	}), nil
}

// Process opens the directory in /proc of a container's first process, which is the supervisor. It cannot be read once
// the process has ended. Process waits until the supervisor is connected to the link. Error: unavailable.
func Process(ctx context.Context, l *Link) (*os.Root, error) {
	s, _, err := l.session(ctx)
	if err != nil {
		return nil, err
	}
	return s.container()
}

// container opens the directory of the container's PID 1 in /proc, which tells about no other process afterwards.
func (s *session) container() (*os.Root, error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d", s.pid))
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonSupervisorUnhealthy,
			"the container's first process has ended: %v", errors.Unwrap(err))
	}
	if s.alive() { // the number belongs to the process that connected, and not to a later one
		return root, nil
	}
	root.Close()
	return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonSupervisorUnhealthy,
		"the connection to the supervisor has ended")
}

// alive reports whether the supervisor has its end of the connection open.
func (s *session) alive() bool {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(poll, 0)
		open = err == nil && poll[0].Revents&(unix.POLLHUP|unix.POLLERR) == 0
	})
	return err == nil && open
}

// Dial connects to a server in the container, as the container's default user. See [files.Session.Dial].
func (l *Link) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	session, err := l.Files(ctx, "", "")
	if err != nil {
		return nil, err
	}
	defer session.Close()
	return session.Dial(ctx, network, address)
}

// errTooOldForFiles is the error of work on files in a container that an older worker started.
var errTooOldForFiles error = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
	"the container was started by an older worker, which could not work on its files; stop and resume the sandbox, or "+
		"create it again")

func (l *Link) mayChange() error {
	if l.config.Lease == nil {
		return nil
	}
	_, err := l.config.Lease()
	return err
}

// help starts a helper, and returns the connection to it. Unlike other requests, Help is not sent again on a new
// connection with the same socket: two helpers would share it.
func (l *Link) help(ctx context.Context, user, cwd string) (*net.UnixConn, error) {
	for {
		s, hello, err := l.session(ctx)
		if err != nil {
			return nil, err
		}
		if !hello.TakesHelp {
			return nil, errTooOldForFiles
		}
		conn, theirs, err := socketPair()
		if err != nil {
			return nil, protocol.Errorf(protocol.Unavailable, "", "make a connection to a sandbox: %v", err)
		}
		c := control.Command{Help: &control.Help{User: user, Cwd: cwd, Files: control.HelperFiles}}
		reply, lost, err := s.ask(ctx, c, theirs)
		theirs.release()
		switch {
		case err == nil && !lost && reply.Error == nil:
			return conn, nil
		case lost:
			err = l.gone(ctx, s)
		case err == nil:
			err = reply.Error
		}
		conn.Close()
		if err != nil {
			return nil, err
		}
	}
}

// socketPair returns the worker's end and the helper's end of a new connection.
func socketPair() (*net.UnixConn, *passed, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs := newPassed(pair[1:])
	// The kernel then says which user sent a packet, see files.Config.
	if err := unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		unix.Close(pair[0])
		theirs.release()
		return nil, nil, err
	}
	ours := os.NewFile(uintptr(pair[0]), "connection to a helper")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.release()
		return nil, nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		theirs.release()
		return nil, nil, errors.New("the socket is not a unix socket")
	}
	return unixConn, theirs, nil
}
