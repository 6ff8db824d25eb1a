package main

import (
	"net"
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
)

// listenAt parses --listen. If the default port is in use, it chooses a free one; an explicitly requested port that is
// in use is an error. Listening beyond loopback requires --listen-insecurely: the token alone protects every host of
// the fleet, and it would cross the network as plain text.
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
		return "", 0, usage("up.listen: %s is reached from other machines, and NATS there would have no TLS and one "+
			"token for everything: "+
			"who reads it on the network has root on the hosts. Listen on loopback and let others in by ssh or a VPN, run "+
			"your own NATS server with TLS, or say --listen-insecurely", listen)
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
		return "", 0, protocol.Errorf(protocol.FailedPrecondition, "", "up.listen: %v; omit the port to use a free one",
			err)
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
