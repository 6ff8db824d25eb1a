package embedded

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	firstPort     = 10000 // lowest port that FreePorts tries
	lastPort      = 19999 // highest port that FreePorts tries; workers publish higher ports for sandboxes
	triesForAPort = 100
	triesForPorts = 5 // how often a start is tried, each time at other ports, while a port is in use

	portPause  = time.Millisecond
	portWithin = 100 * time.Millisecond
)

// FreePorts returns n different TCP ports that are currently free on loopback. It avoids ephemeral ports, which the
// system assigns to outgoing connections, and the ports that workers publish for sandboxes. A connection or a sandbox
// could take such a port before a server listens on it, or while the server restarts. Error: internal.
func FreePorts(n int) ([]int, error) {
	last := lastPort
	if content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		var ephemeral int
		if _, err := fmt.Sscan(string(content), &ephemeral); err == nil && ephemeral > firstPort {
			last = min(last, ephemeral-1)
		}
	}
	ports, taken := make([]int, 0, n), map[int]bool{}
	for range n * triesForAPort {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(last-firstPort+1)
		if !taken[port] && portFree("127.0.0.1", port) == nil {
			ports = append(ports, port)
		}
		taken[port] = true
	}
	return nil, protocol.Errorf(protocol.Internal, "", "found only %d of %d free ports between %d and %d",
		len(ports), n, firstPort, last)
}

// errPortInUse is wrapped by the errors that [Start] returns for a port in use.
var errPortInUse = errors.New("port in use")

// portFree returns an error if the port is already in use. Without this check the NATS server would retry silently.
func portFree(host string, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return inUse{protocol.Errorf(protocol.Unavailable, "", "the embedded NATS server cannot listen: %v", err)}
	}
	return l.Close()
}

// inUse is the error for a port in use. It wraps why and errPortInUse.
type inUse struct{ why *protocol.Error }

func (e inUse) Error() string { return e.why.Error() }

func (e inUse) Unwrap() []error { return []error{e.why, errPortInUse} }

// awaitPortFree waits up to portWithin until a port is free. A call of FreePorts in another process briefly takes each
// port that it tries.
func awaitPortFree(host string, port int) error {
	for pause, end := portPause, time.Now().Add(portWithin); ; pause *= 2 {
		err := portFree(host, port)
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(pause)
	}
}
