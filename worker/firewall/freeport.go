package firewall

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// FreePort returns the first of the given ports that is free on the loopback of the engine's host. Errors:
// resource_exhausted if all of these ports are taken, and unavailable if that cannot be determined.
func (h *host) FreePort(transport string, ports []int) (free int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.enter(); err != nil {
		return 0, err
	}
	err = h.place.do(func() error {
		for _, port := range ports {
			switch err := tryPort(transport, port); {
			case err == nil:
				free = port
				return nil
			case !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EACCES):
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return 0, protocol.Errorf(protocol.Unavailable, "", "find a free port on the host's loopback: %v", err)
	case free == 0:
		return 0, protocol.Errorf(protocol.ResourceExhausted, "",
			"all %d ports that sandboxes may publish on the host's loopback are taken", len(ports))
	}
	return free, nil
}

// tryPort checks that a port of the loopback is free. It binds the port and releases it at once.
func tryPort(transport string, port int) error {
	kind := unix.SOCK_STREAM
	if transport == protocol.ProtocolUDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port})
}
