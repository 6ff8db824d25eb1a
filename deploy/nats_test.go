package deploy

import (
	"encoding/json"
	"fmt"
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
	dir string
	url string
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
		start(t, "Listening for client connections", exec.Command(program(t, natsProgram), "--name", name, "--config",
			filepath.Join(dir, file)))
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
	eventually.Holds(t, 20*time.Second, "ping finds the fleet as safe as configured", func() bool {
		return s.boxfleet(t, "ping", "--creds", s.creds("otto")).Run() == nil
	})
}

// isSafe checks that a server syncs each message, and that nobody connects without TLS, the site's CA or credentials.
func (s *site) isSafe(t *testing.T, monitor int) {
	t.Helper()
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/jsz", monitor))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var jsz struct {
		Config struct {
			SyncAlways bool `json:"sync_always"`
		} `json:"config"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&jsz); err != nil || !jsz.Config.SyncAlways {
		t.Errorf("the server does not sync each message: %+v, %v", jsz, err)
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
}
