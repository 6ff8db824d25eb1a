package integration

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// peer is the program of integration/peer, built once for all tests.
var peer = sync.OnceValues(func() (string, error) {
	path := filepath.Join(fleet.ProgramDir(), "peer")
	build := exec.Command("go", "build", "-o", path, "./peer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// served is a sandbox in which the peer listens.
type served struct {
	t   *testing.T
	f   *fleet.Fleet
	box *sdk.Sandbox
}

// serve creates a sandbox whose command is the peer. change may change its spec.
func serve(ctx context.Context, t *testing.T, f *fleet.Fleet, id string, change func(*protocol.SandboxSpec)) served {
	t.Helper()
	path, err := peer()
	if err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	copied, err := f.Client.Upload(ctx, path, "/peer")
	if err != nil {
		t.Fatal(err)
	}
	spec.Copies = []protocol.Copy{copied}
	spec.Command = []string{"/peer"}
	if change != nil {
		change(&spec)
	}
	box, err := f.Client.Create(ctx, spec, sdk.WithID(id))
	if err != nil {
		t.Fatal(err)
	}
	return served{t, f, box}
}

// dial connects to the peer, and waits until it listens.
func (s served) dial(ctx context.Context, network, address string, opts ...sdk.DialOption) net.Conn {
	s.t.Helper()
	var conn net.Conn
	s.f.Eventually(30*time.Second, "the server in the sandbox answers", func() (err error) {
		conn, err = s.box.DialContext(ctx, network, address, opts...)
		return err
	})
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

func wantRefusal(t *testing.T, err error, code protocol.Code, reasons ...string) {
	t.Helper()
	if got := protocol.AsError(err); err == nil || got.Code != code ||
		!strings.Contains(strings.Join(reasons, " "), got.Reason) {
		t.Errorf("got %v, want %s with reason %v", err, code, reasons)
	}
}

// closeWrite ends what a connection sends.
func closeWrite(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
}

func TestTunnels(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(5 * time.Minute)
	s := serve(ctx, t, f, "tunnels", func(spec *protocol.SandboxSpec) {
		spec.RequiredServices = protocol.Services{"web": {Image: spec.Image,
			Command: []string{"sh", "-c", "echo from the service >/tmp/index.html; exec httpd -f -p 8080 -h /tmp"}}}
	})
	f.Run(t, "both directions and half-close", func(t *testing.T) { s.halfClose(ctx, t, "tcp", "localhost:7000") })
	f.Run(t, "a unix socket", func(t *testing.T) { s.halfClose(ctx, t, "unix", "/tmp/peer.sock") })
	f.Run(t, "a long conversation", func(t *testing.T) { s.conversation(ctx, t) })
	f.Run(t, "HTTP to a service", func(t *testing.T) { s.http(ctx, t) })
	f.Run(t, "files of a service", func(t *testing.T) { s.serviceFiles(ctx, t) })
	f.Run(t, "a WebSocket", func(t *testing.T) { s.webSocket(ctx, t) })
	f.Run(t, "errors", func(t *testing.T) { s.errors(ctx, t) })
	f.Run(t, "deadlines", func(t *testing.T) { s.deadlines(ctx, t) })
	f.Run(t, "the server resets", func(t *testing.T) { s.reset(ctx, t) })
	f.Run(t, "what was sent before Close arrives", func(t *testing.T) { s.sentBeforeClose(ctx, t) })
	f.Run(t, "a hundred connections", func(t *testing.T) { s.many(ctx, t, 100) })
	f.Run(t, "as many connections as are allowed", func(t *testing.T) { s.full(ctx, t) })
}

// full opens as many connections into a sandbox of its own as a worker allows.
func (s served) full(ctx context.Context, t *testing.T) {
	const most = 128
	box := serve(ctx, t, s.f, "full", nil)
	open := []net.Conn{box.dial(ctx, "tcp", "localhost:7000")}
	for len(open) < most {
		conn, err := box.box.DialContext(ctx, "tcp", "localhost:7000")
		if err != nil {
			t.Fatalf("with %d connections: %v", len(open), err)
		}
		t.Cleanup(func() { conn.Close() })
		open = append(open, conn)
	}
	_, err := box.box.DialContext(ctx, "tcp", "localhost:7000")
	wantRefusal(t, err, protocol.ResourceExhausted, protocol.ReasonTooManyStreams)
	s.dial(ctx, "tcp", "localhost:7000") // another sandbox
	open[most/2].Close()
	s.f.Eventually(10*time.Second, "a closed connection makes room", func() error {
		conn, err := box.box.DialContext(ctx, "tcp", "localhost:7000")
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// halfClose sends, says that it sends no more, and then receives everything back.
func (s served) halfClose(ctx context.Context, t *testing.T, network, address string) {
	conn := s.dial(ctx, network, address)
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data) // never fails
	if err := exchange(conn, "sum\n", data, func(c net.Conn) { closeWrite(t, c) }); err != nil {
		t.Fatal(err)
	}
}

// exchange sends a command and data, and checks that the peer answers with the hash of the data.
func exchange(conn net.Conn, command string, data []byte, end func(net.Conn)) error {
	if _, err := conn.Write(append([]byte(command), data...)); err != nil {
		return err
	}
	end(conn)
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%x\n", sha256.Sum256(data)); string(answer) != want {
		return fmt.Errorf("the server answered %q, want %q", answer, want)
	}
	return nil
}

// conversation sends small messages and waits for each answer.
func (s served) conversation(ctx context.Context, t *testing.T) {
	conn := s.dial(ctx, "tcp", "localhost:7000")
	if _, err := io.WriteString(conn, "echo\n"); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64)
	began := time.Now()
	const rounds = 500
	for i := range rounds {
		text := fmt.Sprintf("message %d", i)
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, buffer[:len(text)]); err != nil || string(buffer[:len(text)]) != text {
			t.Fatalf("after %q: %q, %v", text, buffer[:len(text)], err)
		}
	}
	t.Logf("one round takes %s", time.Since(began)/rounds)
	closeWrite(t, conn)
	if rest, err := io.ReadAll(conn); err != nil || len(rest) != 0 {
		t.Errorf("after the end of the input: %q, %v", rest, err)
	}
}

func (s served) http(ctx context.Context, t *testing.T) {
	transport := &http.Transport{DialContext: s.box.Dialer(sdk.WithService("web"))}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:8080/index.html", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.f.Eventually(30*time.Second, "the web server answers", func() error {
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil || string(body) != "from the service\n" {
			return fmt.Errorf("got %q, %w", body, err)
		}
		return nil
	})
}

// serviceFiles carries files into the container of a service, not into the sandbox's own.
func (s served) serviceFiles(ctx context.Context, t *testing.T) {
	web := boxed{s.box.Files(sdk.WithService("web")), s.box, s.f}
	source, target := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(source, "d", "f"), "uploaded", 0o644, time.Now())
	web.put(ctx, t, "/srv/written", "written")
	if _, err := web.Upload(ctx, source, "/srv/tree"); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{"/srv/written": "written", "/srv/tree/d/f": "uploaded"} {
		web.want(ctx, t, path, content)
		if got := printedBy(t, ctx, s.box, "web", "cat", path); got != content {
			t.Errorf("the service reads %q in %s, want %q", got, path, content)
		}
		_, err := s.box.Files().Stat(ctx, path)
		wantReason(t, err, protocol.NotFound, protocol.ReasonPathNotFound)
	}
	if _, err := web.Download(ctx, "/srv/tree", filepath.Join(target, "down")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(target, "down", "d", "f")); err != nil || string(got) != "uploaded" {
		t.Errorf("%q came down, %v", got, err)
	}
}

func (s served) errors(ctx context.Context, t *testing.T) {
	dial := func(network, address string, opts ...sdk.DialOption) error {
		conn, err := s.box.DialContext(ctx, network, address, opts...)
		if err == nil {
			conn.Close()
		}
		return err
	}
	began := time.Now()
	wantRefusal(t, dial("tcp", "localhost:1"), protocol.Unavailable, protocol.ReasonConnectFailed)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a refused connection took %s: it must not be tried again", took)
	}
	wantRefusal(t, dial("unix", "/tmp/none.sock"), protocol.NotFound, protocol.ReasonPathNotFound)
	for field, err := range map[string]error{
		"network": dial("udp", "localhost:1"),
		"address": dial("tcp", "db.example:1"),
		"service": dial("tcp", "localhost:1", sdk.WithService("none")),
	} {
		wantRefusal(t, err, protocol.InvalidArgument, "")
		if got := protocol.AsError(err).Field; got != field {
			t.Errorf("%v names the field %q, want %q", err, got, field)
		}
	}
	_, err := s.f.Client.Sandbox("no-such").DialContext(ctx, "tcp", "localhost:1")
	wantRefusal(t, err, protocol.NotFound, "")
}

func (s served) deadlines(ctx context.Context, t *testing.T) {
	conn := s.dial(ctx, "tcp", "localhost:7000")
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read after the deadline: %v", err)
	}
}

func (s served) reset(ctx context.Context, t *testing.T) {
	conn := s.dial(ctx, "tcp", "localhost:7000")
	if _, err := io.WriteString(conn, "reset\n"); err != nil {
		t.Fatal(err)
	}
	_, err := io.ReadAll(conn)
	wantRefusal(t, err, protocol.Unavailable, protocol.ReasonConnectionReset)
}

// sentBeforeClose closes right after a write. The peer writes what it received to a file, and then answers another
// client.
func (s served) sentBeforeClose(ctx context.Context, t *testing.T) {
	data := make([]byte, 200_000)
	_, _ = rand.Read(data) // never fails
	conn := s.dial(ctx, "tcp", "localhost:7000")
	if _, err := conn.Write(append([]byte("keep\n"), data...)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	want := fmt.Sprintf("%x\n", sha256.Sum256(data))
	s.f.Eventually(10*time.Second, "the server has everything", func() error {
		asking := s.dial(ctx, "tcp", "localhost:7000")
		defer asking.Close()
		if _, err := io.WriteString(asking, "kept\n"); err != nil {
			return err
		}
		closeWrite(t, asking)
		got, err := io.ReadAll(asking)
		if err != nil || string(got) != want {
			return fmt.Errorf("the server has %q, want %q: %w", got, want, err)
		}
		return nil
	})
}

// many uses many connections at once, each for some data.
func (s served) many(ctx context.Context, t *testing.T, connections int) {
	began := time.Now()
	var group errgroup.Group
	opened := make(chan net.Conn, connections)
	for range connections {
		group.Go(func() error {
			conn, err := s.box.DialContext(ctx, "tcp", "localhost:7000")
			if err == nil {
				opened <- conn
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d connections were open after %s", connections, time.Since(began))
	close(opened)
	data := make([]byte, 300_000)
	_, _ = rand.Read(data) // never fails
	for conn := range opened {
		group.Go(func() error {
			defer conn.Close()
			return exchange(conn, "sum\n", data, func(c net.Conn) { closeWrite(t, c) })
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}
