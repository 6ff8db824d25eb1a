package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

// startWithoutHosts runs a NATS server and a coordinator: a fleet that decides requests but has no host. Port 0 means
// any free port.
func startWithoutHosts(t *testing.T, port int) *embedded.Server {
	t.Helper()
	server := startNATS(t, port)
	startCoordinator(t)
	return server
}

// startNATS starts a NATS server to which commands connect. Port 0 means any free port.
func startNATS(t *testing.T, port int) *embedded.Server {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Name: "boxfleet", Port: port, SyncLazily: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	t.Setenv("BOXFLEET_NATS", server.ClientURL())
	return server
}

// startForWorker runs a NATS server and a coordinator, and returns a connection with which the test acts as the worker
// w1.
func startForWorker(t *testing.T) *jetstream.Conn {
	t.Helper()
	server := startWithoutHosts(t, 0)
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server, Name: "w1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func startCoordinator(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var stdout, stderr eventually.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"coordinator"}, args...), strings.NewReader(""), &stdout, &stderr)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != 0 {
			t.Errorf("the coordinator ended with %d: %s", code, stderr.String())
		}
	})
	eventually.Holds(t, patience, "the coordinator is ready", func() bool {
		return strings.Contains(stdout.String(),
			"ready: coordinator")
	})
}

func TestPingWaitsForAFleetThatStarts(t *testing.T) {
	clean(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := silent.Addr().(*net.TCPAddr).Port
	ended := make(chan int, 1)
	var stderr eventually.Buffer
	go func() {
		ended <- run(t.Context(), []string{"ping", "--wait", "1m", "--nats", "nats://127.0.0.1:" + strconv.Itoa(port)},
			strings.NewReader(""), new(eventually.Buffer), &stderr)
	}()
	conn, err := silent.Accept() // ping has connected, and gets no answer
	if err != nil {
		t.Fatal(err)
	}
	silent.Close()
	conn.Close()
	startWithoutHosts(t, port)
	if code := <-ended; code != 0 {
		t.Errorf("ping ended with %d: %s", code, stderr.String())
	}
}

// startUpWithoutEngine runs `boxfleet up` and returns when the NATS server of `up` listens. Without an engine, the
// worker never becomes ready. Calling stop ends that run, and returns the output.
func startUpWithoutEngine(t *testing.T) (stop func() string) {
	t.Helper()
	t.Setenv("BOXFLEET_UP_LISTEN", "127.0.0.1")
	t.Setenv("BOXFLEET_WORKER_SUPERVISOR", os.Args[0])
	ctx, cancel := context.WithCancel(context.Background())
	var stdout, stderr eventually.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"up", "--engine", "unix://" + t.TempDir() + "/none"}, strings.NewReader(""), &stdout,
			&stderr)
	}()
	stop = sync.OnceValue(func() string {
		cancel()
		<-ended
		return stdout.String() + stderr.String()
	})
	t.Cleanup(func() {
		if printed := stop(); t.Failed() {
			t.Logf("up printed:\n%s", printed)
		}
	})
	file := filepath.Join(os.Getenv("XDG_DATA_HOME"), "boxfleet", connectionFile)
	eventually.Holds(t, patience, "up has written the connection file", func() bool {
		if len(ended) > 0 {
			t.Fatalf("up ended: %s", stderr.String())
		}
		_, err := os.Stat(file)
		return err == nil
	})
	return stop
}

// In `up & ping --wait 1m`, the ping runs while `up` starts. The NATS server of `up` listens before the worker is
// ready, and the ping finds the credentials for the server through the connection file.
func TestClientsConnectToAnUpThatIsStillStarting(t *testing.T) {
	clean(t)
	stop := startUpWithoutEngine(t)
	if code, _, said := call(t.Context(), "", "ping", "--wait", "30s"); code != 0 {
		t.Errorf("ping ended with %d: %s", code, said)
	}
	printed := stop()
	file := filepath.Join(os.Getenv("XDG_DATA_HOME"), "boxfleet", connectionFile)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) || strings.Contains(printed, "ready:") {
		t.Errorf("up ended before it was ready: stat of the connection file: %v, output of up: %s", err, printed)
	}
}

// While only another user's `up` listens on the default port, clients connect to the `up` of that user.
func TestPingWaitsWhileOnlyAnotherUsersUpListens(t *testing.T) {
	clean(t)
	server := startNATSOfAnotherUser(t)
	link := startRelay(t, strings.TrimPrefix(server.ClientURL(), "nats://"))
	url := "nats://" + link.listener.Addr().String()
	writeConnection(t, connection{URL: url})
	ended := make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{"ping", "--wait", "1m"}, strings.NewReader(""), new(eventually.Buffer),
			new(eventually.Buffer))
	}()
	link.await(2) // the second attempt shows that the first one was refused
	if len(ended) > 0 {
		t.Fatalf("ping ended with %d", <-ended)
	}
	writeConnection(t, connection{URL: url, Token: anotherToken})
	startCoordinator(t, "--nats", server.ClientURL(), "--token", anotherToken)
	if code := <-ended; code != 0 {
		t.Errorf("ping ended with %d", code)
	}
}

// anotherToken is the token of another user's NATS server.
const anotherToken = "another-users"

// startNATSOfAnotherUser starts a NATS server with a token that this user does not have.
func startNATSOfAnotherUser(t *testing.T) *embedded.Server {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Name: "boxfleet", Token: anotherToken,
		SyncLazily: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

// writeConnection writes the file in which clients find the `up` of this machine, and returns its directory.
func writeConnection(t *testing.T, c connection) (dir string) {
	t.Helper()
	dir = filepath.Join(os.Getenv("XDG_DATA_HOME"), "boxfleet")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestARemovedImageIsNamed(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	var root bytes.Buffer
	archive := tar.NewWriter(&root)
	if err := errors.Join(archive.WriteHeader(&tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}),
		archive.Close()); err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string]string{"text": "tools:1\n", "json": `{"ref":"tools:1"}` + "\n"} {
		if code, _, stderr := call(t.Context(), root.String(), "image", "import", "-", "--ref", "tools:1",
			"--wait=false"); code != 0 {
			t.Fatalf("import: %d, %s", code, stderr)
		}
		expect(t, "image remove tools:1 -o "+format, 0, want)
		expect(t, "image remove tools:1 -o "+format, exitFailure, "")
	}
}

// A repeated request gets the same answer as the original request, whether the original was accepted or refused.
func TestARepeatedRequestIDIsAnsweredAtOnce(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 2 {
		for _, c := range []struct {
			line, stderr string
			code         int
		}{
			{"sandbox create --image i --id a --request-id r1 --wait=false", "", 0},
			{"sandbox create --image i --id a --request-id r2 --wait=false", "already_exists", exitFailure},
			{"exec a --request-id r3 -- true", "sandbox_not_ready", exitNotRun},
			{"exec a --request-id r1 -- true", "for a create", exitNotRun},
		} {
			if code, _, stderr := call(ctx, "", strings.Fields(c.line)...); code != c.code ||
				!strings.Contains(stderr, c.stderr) {
				t.Errorf("%s: want %d and %q, got %d and %q", c.line, c.code, c.stderr, code, stderr)
			}
		}
	}
}
