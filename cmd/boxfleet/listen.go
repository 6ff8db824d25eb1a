package main

import (
	"net"
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
)

// listenAt returns where `up` listens; port 0 means any free port. If the default port is in use, listenAt chooses a
// free port. If a port that the user chose is in use, it returns an error. Listening beyond loopback requires
// --listen-insecurely: the connection is not encrypted, so others could change messages on the way.
func listenAt(listen string, isDefault, insecurely bool) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		host, text = listen, "0"
	}
	if port, err = strconv.Atoi(text); err != nil || port < 0 || port > 65535 {
		return "", 0, usage("up.listen: must be HOST or HOST:PORT, got %.80q", listen)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	loopback, err := isLoopback(host)
	switch {
	case err != nil:
		return "", 0, usage("up.listen: %v", err)
	case !loopback && !insecurely:
		return "", 0, usage("up.listen: other machines can reach %s, but up's NATS has no TLS: anyone on the "+
			"network path can change requests and so become root on the hosts. Listen on loopback "+
			"and give others access through ssh or a VPN, run your own NATS server with TLS, or set --listen-insecurely", listen)
	case port == 0:
		return host, 0, nil
	}
	probe, err := net.Listen("tcp", net.JoinHostPort(host, text))
	switch {
	case err == nil:
		probe.Close()
	case isDefault:
		port = 0
	default:
		return "", 0, protocol.Errorf(protocol.FailedPrecondition, "", "up.listen: %v; omit the port to use a free one", err)
	}
	return host, port, nil
}

// isLoopback reports whether a host name or address is reachable only from this machine.
func isLoopback(host string) (bool, error) {
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback(), nil
	}
	ips, err := net.LookupIP(host)
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return false, nil
		}
	}
	return true, err
}
