// Package tap records what NATS servers and their clients exchange.
package tap

import (
	"io"
	"net"
	"testing"
)

// Start starts a proxy of a server that listens at the TCP address server, and returns the proxy's address. The proxy
// ends with the test. It writes every byte of both directions to record, from several goroutines at once.
func Start(t *testing.T, server string, record io.Writer) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // a proxy that is left ends with the test's process
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close() // the client dials again
				continue
			}
			for _, way := range [][2]net.Conn{{client, upstream}, {upstream, client}} {
				go func() {
					_, _ = io.Copy(io.MultiWriter(way[1], record), way[0]) // it ends with either connection
					_ = client.Close()                                     // this ends the other direction, which closes both again
					_ = upstream.Close()
				}()
			}
		}
	}()
	return l.Addr().String()
}
