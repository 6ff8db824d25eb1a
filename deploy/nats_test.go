package deploy

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

// site is a deployment in a temporary directory: an authority, a CA, and a client's environment.
type site struct {
	dir   string
	url   string
	nodes []*exec.Cmd // the running NATS servers
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{dir: t.TempDir()}
	certificates(t, s.dir)
	run(t, s.boxfleet(t, "auth", "init", s.authority()))
	for _, args := range [][]string{{"coordinator", "c1"}, {"operator", "otto"}} {
		run(t, s.boxfleet(t, append([]string{"auth", "add", "--dir", s.authority(),
			"--file", s.creds(args[1])}, args...)...))
	}
	return s
}

func (s *site) authority() string        { return filepath.Join(s.dir, "authority") }
func (s *site) creds(name string) string { return filepath.Join(s.dir, name+".creds") }

// boxfleet returns a command that trusts the site's CA.
func (s *site) boxfleet(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(within(t, 5*time.Minute), program(t, boxfleetProgram), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"HOME=" + s.dir, "BOXFLEET_TLS_CA=" + filepath.Join(s.dir, "ca.crt"), "BOXFLEET_NATS=" + s.url}
	return cmd
}

// servers starts one server with each name from a file of nats/, and returns the ports of their monitoring.
func (s *site) servers(t *testing.T, file string, names ...string) (monitors []int) {
	t.Helper()
	ports, err := embedded.FreePorts(3 * len(names))
	if err != nil {
		t.Fatal(err)
	}
	routes := make([]string, 0, 2*len(names))
	for i, name := range names {
		routes = append(routes, name+".example.com:6222", fmt.Sprintf("127.0.0.1:%d", ports[3*i+2]))
	}
	var urls []string
	for i, name := range names {
		client, monitor, route := ports[3*i], ports[3*i+1], ports[3*i+2]
		dir := filepath.Join(s.dir, name)
		places := strings.NewReplacer(append(routes, "0.0.0.0:4222", fmt.Sprintf("127.0.0.1:%d", client),
			"127.0.0.1:8222", fmt.Sprintf("127.0.0.1:%d", monitor), "0.0.0.0:6222", fmt.Sprintf("127.0.0.1:%d", route),
			"/etc/boxfleet-nats", s.dir, "/var/lib/boxfleet-nats", filepath.Join(dir, "data"))...)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, each := range []string{file, "jetstream.conf"} {
			text, err := os.ReadFile(filepath.Join("nats", each))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, each), places.Replace(string(text)))
		}
		write(t, filepath.Join(dir, "auth.conf"), run(t, s.boxfleet(t, "auth", "config", "--dir", s.authority(),
			"--resolver-dir", filepath.Join(dir, "data", "accounts"))))
		node := exec.Command(program(t, natsProgram), "--name", name, "--config", filepath.Join(dir, file))
		start(t, "Listening for client connections", node)
		s.nodes = append(s.nodes, node)
		urls, monitors = append(urls, fmt.Sprintf("tls://127.0.0.1:%d", client)), append(monitors, monitor)
	}
	s.url = strings.Join(urls, ",")
	return monitors
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// serves starts a coordinator at the site's servers and lists the hosts.
func (s *site) serves(t *testing.T, args ...string) {
	t.Helper()
	printed := start(t, "ready: coordinator c1", s.boxfleet(t, append([]string{"coordinator", "--name", "c1",
		"--creds", s.creds("c1")}, args...)...))
	if strings.Contains(printed.String(), "smaller than by default") {
		t.Errorf("max_file_store is too small for the default limits:\n%s", printed)
	}
	hosts := run(t, s.boxfleet(t, "host", "list", "-o", "json", "--creds", s.creds("otto")))
	if !json.Valid([]byte(hosts)) {
		t.Errorf("host list printed %s", hosts)
	}
	// A follower of a new stream may lag for a moment.
	run(t, s.boxfleet(t, "ping", "--wait", "20s", "--creds", s.creds("otto")))
}

// The limits in nats/jetstream.conf.
const (
	maxStorage = 64 << 30
	maxMemory  = 1 << 30
)

// isSafe checks that a server syncs each message within the configured limits of its store, and that nobody connects
// without TLS, the site's CA or credentials.
func (s *site) isSafe(t *testing.T, monitor int) {
	t.Helper()
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/jsz", monitor))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var jsz struct {
		Config struct {
			SyncAlways bool  `json:"sync_always"`
			MaxStorage int64 `json:"max_storage"`
			MaxMemory  int64 `json:"max_memory"`
		} `json:"config"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&jsz); err != nil || !jsz.Config.SyncAlways {
		t.Errorf("the server does not sync each message: %+v, %v", jsz, err)
	}
	if jsz.Config.MaxStorage != maxStorage || jsz.Config.MaxMemory != maxMemory {
		t.Errorf("the limits of the store are %+v, want those of jetstream.conf", jsz.Config)
	}
	ca := nats.RootCAs(filepath.Join(s.dir, "ca.crt"))
	for what, options := range map[string][]nats.Option{
		"without the CA":      {nats.UserCredentials(s.creds("otto"))},
		"without credentials": {ca},
	} {
		if nc, err := nats.Connect(s.url, append(options, nats.NoReconnect())...); err == nil {
			nc.Close()
			t.Errorf("a client %s is accepted", what)
		}
	}
	nc, err := nats.Connect(s.url, ca, nats.UserCredentials(s.creds("otto")), nats.NoReconnect())
	if err != nil {
		t.Fatalf("a client with the CA and credentials: %v", err)
	}
	nc.Close()
	s.refusesClearText(t)
}

// refusesClearText checks that a server announces that it requires TLS, and that it closes a connection whose client
// goes on in clear.
func (s *site) refusesClearText(t *testing.T) {
	t.Helper()
	first, _, _ := strings.Cut(s.url, ",")
	raw, err := net.DialTimeout("tcp", strings.TrimPrefix(first, "tls://"), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	from := bufio.NewReader(raw)
	line, err := from.ReadString('\n')
	if err != nil {
		t.Fatalf("the server's first line: %q, %v", line, err)
	}
	var info struct {
		TLSRequired  bool `json:"tls_required"`
		AuthRequired bool `json:"auth_required"`
	}
	text, isInfo := strings.CutPrefix(line, "INFO ")
	if err := json.Unmarshal([]byte(text), &info); !isInfo || err != nil || !info.TLSRequired || !info.AuthRequired {
		t.Errorf("the server does not require TLS and credentials: %s, %v", line, err)
	}
	// The server may close the connection before it has read everything.
	_, _ = raw.Write([]byte("CONNECT {\"verbose\":true,\"pedantic\":false,\"tls_required\":false}\r\nPING\r\n"))
	answer, err := io.ReadAll(from)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the server keeps a connection in clear open; it answered %q", answer)
	}
	if said := string(answer); strings.Contains(said, "+OK") || strings.Contains(said, "PONG") {
		t.Errorf("the server answers a client in clear with %q", said)
	}
}

func TestOneNATSServerServesAFleet(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	monitors := s.servers(t, "one.conf", "n1")
	s.serves(t)
	s.isSafe(t, monitors[0])
}

func TestThreeNATSServersServeAFleet(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	monitors := s.servers(t, "cluster.conf", "n1", "n2", "n3")
	s.serves(t, "--replicas", "3")
	s.isSafe(t, monitors[2])

	if err := s.nodes[1].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	otto := []string{"--creds", s.creds("otto"), "--tenant", "blue", "--deadline", "1m"}
	run(t, s.boxfleet(t, append([]string{"sandbox", "create", "--image", "x", "--wait=false"}, otto...)...))
	// The other servers notice after some seconds that the server is away.
	eventually.Holds(t, 30*time.Second, "ping reports that a server is away", func() bool {
		return s.boxfleet(t, append([]string{"ping"}, otto...)...).Run() != nil
	})
	again := exec.Command(s.nodes[1].Path, s.nodes[1].Args[1:]...)
	start(t, "Listening for client connections", again)
	run(t, s.boxfleet(t, append([]string{"ping", "--wait", "1m"}, otto...)...))
}
