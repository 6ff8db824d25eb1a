package embedded_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

func start(t *testing.T, cfg embedded.Config) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func open(t *testing.T, s *embedded.Server) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestARestartKeepsPortAndData(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: t.TempDir()})
	js, url := open(t, s), s.ClientURL()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	again, err := s.Restart()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Stop)
	if again.ClientURL() != url {
		t.Fatalf("the URL changed from %s to %s", url, again.ClientURL())
	}
	stream, err := open(t, again).Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.GetMsg(t.Context(), 1); err != nil || string(m.Data) != "kept" {
		t.Fatalf("the stored message is %v, %v", m, err)
	}
}

func TestEachWriteIsSyncedByDefault(t *testing.T) {
	t.Parallel()
	for _, lazily := range []bool{false, true} {
		s := start(t, embedded.Config{Dir: t.TempDir(), SyncLazily: lazily})
		if got := s.JetStreamConfig().SyncAlways; got == lazily {
			t.Errorf("with SyncLazily %v, the server's SyncAlways is %v", lazily, got)
		}
	}
}

func TestAPortInUseIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	for name, cfg := range map[string]embedded.Config{
		"the port for clients":           {Port: taken},
		"the port for the other members": {ClusterName: "boxfleet", ClusterPort: taken},
	} {
		cfg.Dir = t.TempDir()
		began := time.Now()
		_, err = embedded.Start(cfg)
		var typed *protocol.Error
		if !errors.As(err, &typed) || typed.Code != protocol.Unavailable {
			t.Errorf("%s is in use, but Start returned %T %v", name, err, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s is in use, which Start reported only after %s", name, took)
		}
	}
}

// A call of FreePorts in another process briefly takes each port that it tries.
func TestAPortThatIsTakenForAMomentIsAwaited(t *testing.T) {
	t.Parallel()
	ports, err := embedded.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])))
	if err != nil {
		t.Fatal(err)
	}
	closed := time.AfterFunc(50*time.Millisecond, func() { l.Close() })
	defer closed.Stop()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Port: ports[0]})
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
}

// The system assigns ephemeral ports to outgoing connections. A connection could take a port that was just free, before
// the server listens on it or while the server restarts.
func TestFreePortsAreNotEphemeral(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	var first, last int
	if _, err := fmt.Sscan(string(content), &first, &last); err != nil {
		t.Fatal(err)
	}
	ports, err := embedded.FreePorts(100)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if port >= first && port <= last || port < 1024 || seen[port] {
			t.Errorf("port %d is ephemeral, privileged or repeated, in %v", port, ports)
		}
		seen[port] = true
	}
}

func TestTheStoreDirectoryIsRequired(t *testing.T) {
	t.Parallel()
	_, err := embedded.Start(embedded.Config{})
	if protocol.CodeOf(err) != protocol.InvalidArgument {
		t.Fatal(err)
	}
}

func TestAClientWithoutTheTokenIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: t.TempDir(), Token: "secret"})
	if _, err := nats.Connect(s.ClientURL()); !errors.Is(err, nats.ErrAuthorization) {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.ClientURL(), nats.Token("secret"))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}
