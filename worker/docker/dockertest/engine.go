package dockertest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Image is the small image that tests and the demo use: busybox with the users root and box.
const Image = "boxfleet/demo:busybox"

// Socket returns the path of the engine's unix socket: the socket in DOCKER_HOST, or Docker's default. It fails the
// test if no engine answers on that socket.
func Socket(tb testing.TB) string {
	tb.Helper()
	socket := "/var/run/docker.sock"
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		path, ok := strings.CutPrefix(host, "unix://")
		if !ok {
			tb.Fatalf("these tests need a Docker engine on a unix socket, but DOCKER_HOST is %q", host)
		}
		socket = path
	}
	if status, err := get(socket, "/_ping"); err != nil || status != http.StatusOK {
		tb.Fatalf("no Docker engine answers at %s (status %d, %v): run `make engine`", socket, status, err)
	}
	return socket
}

// RequireImage fails the test if the engine at the given socket does not have [Image].
func RequireImage(tb testing.TB, socket string) {
	tb.Helper()
	if status, err := get(socket, "/images/"+Image+"/json"); err != nil || status != http.StatusOK {
		tb.Fatalf("the engine at %s does not have the image %s (status %d, %v): run `make engine image`", socket, Image,
			status, err)
	}
}

// StartProxy starts a [Proxy] in front of the engine's socket, whose path is the parameter upstream. It returns the
// proxy, and the proxy's address in the form of DOCKER_HOST. The proxy is closed at the end of the test.
func StartProxy(tb testing.TB, upstream string) (proxy *Proxy, host string) {
	tb.Helper()
	// The path of a unix socket is limited to 107 bytes. A path in tb.TempDir may be longer.
	dir, err := os.MkdirTemp("", "boxfleet-proxy-")
	if err != nil {
		tb.Fatal(err)
	}
	socket := filepath.Join(dir, "engine.sock")
	proxy, err = NewProxy(upstream, socket)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(proxy.Close(), os.RemoveAll(dir)); err != nil {
			tb.Errorf("closing the proxy: %v", err)
		}
	})
	return proxy, "unix://" + socket
}

func get(socket, path string) (int, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}
	client := http.Client{Transport: transport, Timeout: 5 * time.Second}
	resp, err := client.Get("http://engine" + path)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
