package firewall

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// FreePort returns the first of these ports that is free on the loopback of the engine's host. Errors:
// resource_exhausted if all are taken, unavailable if that cannot be determined.
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
		return 0, protocol.Errorf(protocol.Unavailable, "", "find a free port: %v", err)
	case free == 0:
		return 0, protocol.Errorf(protocol.ResourceExhausted, "", "none of %d ports of the host's loopback is free",
			len(ports))
	}
	return free, nil
}

// tryPort checks that a port of the loopback is free, by binding it for a moment.
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
