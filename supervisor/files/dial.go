package files

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// maxSocketPath is the greatest length of a unix socket's path in bytes, by the kernel's limit.
const maxSocketPath = 107

// dial connects to a server in the container, and passes the connection to the worker.
func (h *helper) dial(ctx context.Context, r *protocol.FileDial) error {
	conn, err := h.connect(ctx, r)
	if err != nil {
		return h.answer(nil, err)
	}
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return h.answer(nil, err)
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = h.link.SendMessage(&control.FileReply{}, int(fd)) }); err != nil {
		return h.answer(nil, err)
	}
	return sent
}

func (h *helper) connect(ctx context.Context, r *protocol.FileDial) (net.Conn, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if r.Network == "unix" {
		at, err := h.path("address", r.Address)
		if err != nil {
			return nil, err
		}
		if len(at) > maxSocketPath {
			return nil, protocol.Invalid("address", "the path of a socket has at most %d bytes, got %d", maxSocketPath, len(at))
		}
		return connectTo(ctx, "unix", at, r.Address)
	}
	host, port, err := net.SplitHostPort(r.Address)
	if err != nil {
		return nil, protocol.Invalid("address", "must be host:port, got %.80q", r.Address)
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return nil, protocol.Invalid("address", "the port must be a number from 1 to 65535, got %.80q", port)
	}
	if host == "" || host == "localhost" {
		conn, err := connectTo(ctx, "tcp", net.JoinHostPort("127.0.0.1", port), r.Address)
		if err == nil {
			return conn, nil
		}
		if conn, err := connectTo(ctx, "tcp", net.JoinHostPort("::1", port), r.Address); err == nil {
			return conn, nil
		}
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return nil, protocol.Invalid("address", "the host must be an IP address or localhost, got %.80q", host)
	}
	return connectTo(ctx, "tcp", r.Address, r.Address)
}

func connectTo(ctx context.Context, network, address, asked string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err == nil {
		return conn, nil
	}
	errno := unix.Errno(0)
	errors.As(err, &errno)
	switch {
	case network == "unix" && (errno == unix.ENOENT || errno == unix.EACCES || errno == unix.ENOTDIR ||
		errno == unix.ELOOP):
		return nil, failure(asked, errno)
	case errno != 0:
		return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonConnectFailed,
			"connect to %.200q in the sandbox: %v",
			asked, errno)
	}
	return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonConnectFailed, "connect to %.200q in the sandbox: %v",
		asked, err)
}
