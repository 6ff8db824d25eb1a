package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

// natsVariable is an environment variable with the path of a configuration file. If it is set, the test binary runs a
// NATS server with that configuration.
const natsVariable = "BOXFLEET_TEST_NATS_CONFIG"

func TestMain(m *testing.M) {
	if file := os.Getenv(natsVariable); file != "" {
		opts, err := server.ProcessConfigFile(file)
		if err == nil {
			err = runNATS(opts)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Clients spend most of their time waiting for an exec or for a limit. On small machines they therefore finish sooner
	// with more parallel tests than cores. The flag -parallel overrides this number.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	flag.Parse()
	if isWholePackage() {
		os.Exit(eachApart())
	}
	goleak.VerifyTestMain(m)
}

func runNATS(opts *server.Options) error {
	s, err := server.NewServer(opts)
	if err == nil {
		s.Start()
		s.WaitForShutdown()
	}
	return err
}

// natsServer is a NATS server in a process of its own.
type natsServer struct {
	config string // path of the configuration file
	port   string
	tls    string // section tls of the configuration, or empty
	cmd    *exec.Cmd
}

// newNATS prepares a server on a free port. authorization is the text of the section authorization in its
// configuration.
func newNATS(t *testing.T, authorization string) *natsServer {
	t.Helper()
	s := &natsServer{config: filepath.Join(t.TempDir(), "nats.conf"), port: freePort(t)}
	s.configure(t, authorization)
	return s
}

func freePort(t *testing.T) string {
	t.Helper()
	ports, err := embedded.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(ports[0])
}

func (s *natsServer) url() string { return "nats://127.0.0.1:" + s.port }

func (s *natsServer) configure(t *testing.T, authorization string) {
	t.Helper()
	text := fmt.Sprintf("listen: 127.0.0.1:%s\njetstream { store_dir: %q }\nauthorization { %s }\n%s", s.port,
		filepath.Dir(s.config), authorization, s.tls)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start runs the server, and returns when it accepts connections.
func (s *natsServer) start(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), natsVariable+"="+s.config)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := s.cmd
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // both calls fail if the process has ended
	eventually.Holds(t, patience, "NATS listens", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+s.port)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// kill ends the server without a shutdown, as a power failure would.
func (s *natsServer) kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait() // reports the kill
}

// reload makes the running server read a new section authorization.
func (s *natsServer) reload(t *testing.T, authorization string) {
	t.Helper()
	s.configure(t, authorization)
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// role is a coordinator or a worker that runs during the test.
type role struct {
	stdout, stderr eventually.Buffer
	stop           func()
	ended          chan int
	health         string // URL of /healthz and /readyz, without the path
}

// startRole runs a server command that serves its health.
func startRole(t *testing.T, args ...string) *role {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &role{stop: cancel, ended: make(chan int, 1)}
	address := "127.0.0.1:" + freePort(t)
	r.health = "http://" + address
	go func() {
		r.ended <- run(ctx, append(args, "--health-listen", address), strings.NewReader(""), &r.stdout, &r.stderr)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case code := <-r.ended:
			r.ended <- code
		case <-time.After(20 * time.Second):
			t.Error("the role did not end within 20 s")
		}
	})
	return r
}

// askReady returns the status and the text of /readyz.
func (r *role) askReady() (code int, text string) { return r.ask("/readyz") }

func (r *role) ask(path string) (code int, text string) {
	client := http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get(r.health + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(body)
}

// await waits until /readyz has this status and this text. Meanwhile /healthz has
// status 200, once the role listens.
func (r *role) await(t *testing.T, code int, text string) {
	t.Helper()
	gotCode, got := 0, ""
	defer func() {
		if t.Failed() {
			t.Logf("/readyz: %d %s\nlog:\n%s", gotCode, got, r.stderr.String())
		}
	}()
	eventually.Holds(t, patience, fmt.Sprintf("/readyz says %d %q", code, text), func() bool {
		if len(r.ended) > 0 {
			t.Fatalf("the role has ended with %d: %s", <-r.ended, r.stderr.String())
		}
		if alive, text := r.ask("/healthz"); alive != http.StatusOK && alive != 0 {
			t.Fatalf("/healthz: %d %s", alive, text)
		}
		gotCode, got = r.askReady()
		return gotCode == code && strings.Contains(got, text)
	})
}

// endsSoon stops a role that waits, and checks that it ends with exit code 0 within two seconds.
func (r *role) endsSoon(t *testing.T) {
	t.Helper()
	r.ends(t, 2*time.Second)
}

// ends stops the role, and checks that it ends with exit code 0 within the given time.
func (r *role) ends(t *testing.T, within time.Duration) {
	t.Helper()
	began := time.Now()
	r.stop()
	select {
	case code := <-r.ended:
		r.ended <- code
		if code != 0 {
			t.Errorf("the role ended with %d: %s", code, r.stderr.String())
		}
	case <-time.After(within):
		stacks := make([]byte, 1<<20)
		t.Errorf("the role has not ended after %s: %s\n%s", time.Since(began), r.stderr.String(),
			stacks[:runtime.Stack(stacks, true)])
	}
}

// executable returns the path of an executable file. A test can pass it as the supervisor if no supervisor ever starts.
func executable(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "supervisor")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRolesWaitForNATSAndEndWhenAsked(t *testing.T) {
	clean(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, url := range map[string]string{
		"no server": "nats://127.0.0.1:" + freePort(t), "no such host": "nats://nowhere.invalid:4222",
		"silent": strings.Repeat("nats://"+silent.Addr().String()+",", 4) + "nats://127.0.0.1:1",
	} {
		for _, args := range [][]string{{"coordinator"}, {"worker", "--supervisor", executable(t), "--state-dir",
			t.TempDir()}} {
			t.Run(name+"/"+args[0], func(t *testing.T) {
				r := startRole(t, append(args, "--nats", url)...)
				r.await(t, http.StatusServiceUnavailable, "waiting for NATS")
				if name != "silent" {
					eventually.Holds(t, patience, "the log says that the role waits for NATS", func() bool {
						return strings.Contains(r.stderr.String(), "waiting for NATS")
					})
				}
				r.endsSoon(t)
			})
		}
	}
}

func TestARoleThatStartedBeforeNATSWorksOnceNATSStarts(t *testing.T) {
	clean(t)
	s := newNATS(t, "")
	r := startRole(t, "coordinator", "--nats", s.url())
	eventually.Holds(t, patience, "the coordinator waits", func() bool {
		return strings.Contains(r.stderr.String(), "waiting for NATS")
	})
	s.start(t)
	r.await(t, http.StatusOK, "places sandboxes")
	for range 2 {
		s.kill(t)
		r.await(t, http.StatusServiceUnavailable, "no connection to NATS")
		s.start(t)
		began := time.Now()
		code, _, stderr := call(t.Context(), "", "sandbox", "delete", "nothing", "--nats", s.url())
		if took := time.Since(began); took > 1500*time.Millisecond || !strings.Contains(stderr, "not_found") {
			t.Errorf("the first request after the outage took %s: exit code %d, %s", took, code, stderr)
		} else {
			t.Logf("the first request after the outage took %s", took)
		}
	}
}

func TestAWorkerWaitsForItsEngine(t *testing.T) {
	fleetOfOne(t)
	startWithoutHosts(t, 0)
	socket := filepath.Join(t.TempDir(), "docker.sock")
	worker := []string{"worker", "--engine", "unix://" + socket, "--state-dir", t.TempDir(), "--name", "w1"}
	r := startRole(t, worker...)
	r.await(t, http.StatusServiceUnavailable, "waits for the Docker engine")
	r.await(t, http.StatusServiceUnavailable, "NATS: connected")
	r.endsSoon(t)
	r = startRole(t, worker...)
	r.await(t, http.StatusServiceUnavailable, "waits for the Docker engine")
	if n := strings.Count(r.stderr.String(), "waiting for the Docker engine"); n != 1 {
		t.Errorf("the log says %d times that the worker waits, want once:\n%s", n, r.stderr.String())
	}
	if err := os.Symlink("/var/run/docker.sock", socket); err != nil {
		t.Fatal(err)
	}
	r.await(t, http.StatusOK, "the engine answers")
	removeHostMark(t)
	r.ends(t, 20*time.Second)
}

func TestAnErrorThatWaitingCannotRepairEndsARoleAtOnce(t *testing.T) {
	clean(t)
	s := newNATS(t, `token: "right"`)
	s.start(t)
	worker := []string{"worker", "--supervisor", executable(t), "--state-dir", t.TempDir(), "--nats", s.url()}
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"coordinator", "--nats", "nats://n1:port"}, "nats"},
		{[]string{"coordinator", "--nats", "http://n1:4222"}, "http"},
		{[]string{"coordinator", "--nats", s.url(), "--creds", missing}, "creds"},
		{[]string{"coordinator", "--nats", s.url(), "--token-file", missing}, "token_file"},
		{[]string{"coordinator", "--nats", s.url(), "--token", "wrong"}, "uthorization"},
		{append(worker, "--engine", "pigeon://coop"), "engine"},
		{append(worker, "--engine", "ssh://host"), "engine"},
		{append(worker, "--health-listen", "nowhere"), "health_listen"},
		{[]string{"coordinator", "--nats", s.url(), "--health-listen", strings.TrimPrefix(s.url(), "nats://")}, "in use"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		code, _, stderr := call(ctx, "", c.args...)
		if ctx.Err() != nil || code == 0 || !strings.Contains(stderr, c.want) {
			t.Errorf("%v ended with %d: %s", c.args, code, stderr)
		}
		cancel()
	}
}
