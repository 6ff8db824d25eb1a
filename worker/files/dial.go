package files

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// Dial connects to a TCP port or a unix socket in the container, as the session's user and in the container's network
// namespace. network is "tcp" or "unix"; address is "host:port" with a numeric host or localhost, or the path of a
// socket. ctx limits only the dialling. Error: unavailable connect_failed if nothing answers at the address.
func (s *Session) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	r := protocol.FileDial{Network: network, Address: address}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	h, err := s.begin(ctx, false, control.FileCall{Dial: &r})
	if err != nil {
		return nil, err
	}
	reply, file, err := h.reply()
	if err == nil && (reply.Error == nil) != (file >= 0) {
		err = errUnexpected
	}
	if err == nil && file >= 0 {
		err = checkSocket(file)
	}
	if err != nil || reply.Error != nil {
		packet.Discard(file)
		_, err = h.finish(ctx, reply, err)
		return nil, err
	}
	h.done(true)
	conn, err := newConnection(file)
	if err != nil {
		return nil, s.broken(ctx, err)
	}
	return conn, nil
}

// checkSocket accepts connected stream sockets only, and makes sure that closing them does not wait.
func checkSocket(fd int) error {
	domain, err1 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	kind, err2 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	listens, err3 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	known := domain == unix.AF_INET || domain == unix.AF_INET6 || domain == unix.AF_UNIX
	if !known || kind != unix.SOCK_STREAM || listens != 0 {
		return errors.New("the descriptor is not a connection")
	}
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
}

// connection is a connection into a container. A process in the container may have its socket too, and make it
// blocking: so each read and each write says that it must not block.
type connection struct {
	net.Conn
	raw syscall.RawConn
	oob []byte // for a unix socket: buffer for descriptors that come with bytes; they are dropped
}

// newConnection takes over a descriptor.
func newConnection(fd int) (net.Conn, error) {
	file := os.NewFile(uintptr(fd), "connection into a sandbox")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return nil, err
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		conn.Close()
		return nil, err
	}
	c := &connection{Conn: conn, raw: raw}
	if _, ok := conn.(*net.UnixConn); ok {
		c.oob = make([]byte, unix.CmsgSpace(4*packet.MostDescriptors))
	}
	return c, nil
}

// AwaitReadable returns when Read would not block, or the error with which the connection has failed: the kernel tells
// it only once.
func (c *connection) AwaitReadable() (err error) {
	waitErr := c.raw.Read(func(fd uintptr) bool {
		for {
			var one [1]byte
			_, _, err = unix.Recvfrom(int(fd), one[:], unix.MSG_DONTWAIT|unix.MSG_PEEK)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if waitErr == nil && err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	return waitErr
}

// Read implements [net.Conn].
func (c *connection) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	waitErr := c.raw.Read(func(fd uintptr) bool {
		for {
			var oobn int
			n, oobn, _, _, err = unix.Recvmsg(int(fd), p, c.oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			packet.DiscardAll(c.oob[:max(oobn, 0)])
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	switch {
	case waitErr != nil:
		return 0, waitErr
	case err != nil:
		return 0, os.NewSyscallError("recvmsg", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements [net.Conn].
func (c *connection) Write(p []byte) (written int, err error) {
	waitErr := c.raw.Write(func(fd uintptr) bool {
		for written < len(p) {
			var n int
			n, err = unix.SendmsgN(int(fd), p[written:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			switch {
			case err == nil:
				written += n
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				return false
			default:
				return true
			}
		}
		return true
	})
	switch {
	case waitErr != nil:
		return written, waitErr
	case err != nil:
		return written, os.NewSyscallError("sendmsg", err)
	}
	return written, nil
}

// Close implements [net.Conn]. It does not wait, whatever a process in the container has set.
func (c *connection) Close() error {
	socket, ok := c.Conn.(syscall.Conn)
	if !ok {
		return c.Conn.Close()
	}
	return packet.Release(struct {
		io.Closer
		syscall.Conn
	}{c.Conn, socket})
}

// CloseWrite says that nothing more will be written.
func (c *connection) CloseWrite() error {
	closer, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return closer.CloseWrite()
}
