package main

import (
	"net"
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
)

// listenAt takes --listen apart. The default port gives way where it is taken; a port that was asked for does
// not, whatever it is. Beyond loopback it takes an explicit word: the token, which is all that keeps others
// from every host of the fleet, travels there as plain text.
func listenAt(listen string, isDefault, insecurely bool) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		host, text = listen, "0"
	}
	if port, err = strconv.Atoi(text); err != nil || port < 0 || port > 65535 {
		return "", 0, usage("up.listen: want HOST or HOST:PORT, got %.80q", listen)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	loopback, err := isLoopback(host)
	switch {
	case err != nil:
		return "", 0, usage("up.listen: %v", err)
	case !loopback && !insecurely:
		return "", 0, usage("up.listen: %s is reached from other machines, and NATS there would have no TLS and one token for everything: "+
			"who reads it on the network has root on the hosts. Listen on loopback and let others in by ssh or a VPN, run your own NATS server with TLS, or say --listen-insecurely", listen)
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
		return "", 0, protocol.Errorf(protocol.FailedPrecondition, "", "up.listen: %v; leave the port out for a free one",
			err)
	}
	return host, port, nil
}

// isLoopback says whether only this machine reaches what listens on a host.
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
