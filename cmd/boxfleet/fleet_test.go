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
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

// startWithoutHosts runs NATS, on a port that may be 0, and a coordinator: a fleet that decides, and has
// no host.
func startWithoutHosts(t *testing.T, port int) *embedded.Server {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Name: "boxfleet", Port: port, SyncLazily: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	t.Setenv("BOXFLEET_NATS", server.ClientURL())
	startCoordinator(t)
	return server
}

func startCoordinator(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var stdout, stderr screen
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
	eventually(t, "the coordinator is ready", func() bool {
		return strings.Contains(stdout.String(),
			"ready: coordinator")
	})
}

func TestPingWaitsForAFleetThatComes(t *testing.T) {
	clean(t)
	before, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := before.Addr().(*net.TCPAddr).Port
	ended := make(chan int, 1)
	var stderr screen
	go func() {
		ended <- run(t.Context(), []string{"ping", "--wait", "1m", "--nats", "nats://127.0.0.1:" + strconv.Itoa(port)},
			strings.NewReader(""), new(screen), &stderr)
	}()
	conn, err := before.Accept() // it has tried, in vain
	if err != nil {
		t.Fatal(err)
	}
	before.Close()
	conn.Close()
	startWithoutHosts(t, port)
	if code := <-ended; code != 0 {
		t.Errorf("ping ended with %d: %s", code, stderr.String())
	}
}

// `up & ping --wait 1m` asks while up starts: its NATS listens before its worker, here for ever, and nobody else
// would know the token.
func TestAnUpThatStartsIsKnownToItsClients(t *testing.T) {
	clean(t)
	t.Setenv("BOXFLEET_UP_LISTEN", "127.0.0.1")
	t.Setenv("BOXFLEET_WORKER_SUPERVISOR", os.Args[0])
	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr screen
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"up", "--engine", "unix://" + t.TempDir() + "/none"}, strings.NewReader(""), &stdout,
			&stderr)
	}()
	file := filepath.Join(os.Getenv("XDG_DATA_HOME"), "boxfleet", connectionFile)
	eventually(t, "up says where it listens", func() bool { _, err := os.Stat(file); return err == nil })
	if code, _, said := call(t.Context(), "", "ping", "--wait", "30s"); code != 0 {
		t.Errorf("ping ended with %d: %s; up said %s", code, said, stderr.String())
	}
	cancel()
	<-ended
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) || strings.Contains(stdout.String(), "ready") {
		t.Errorf("an up that never was ready left: %v, %s", err, stdout.String())
	}
}

// Where another user's up has the usual port, that one is found until this user's listens.
func TestPingWaitsBesideAnUpOfAnotherUser(t *testing.T) {
	clean(t)
	dir := filepath.Join(os.Getenv("XDG_DATA_HOME"), "boxfleet")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Name: "boxfleet", Token: "somebody-elses",
		SyncLazily: true})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	if err := (connection{server.ClientURL(), ""}).write(dir); err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{"ping", "--wait", "1m"}, strings.NewReader(""), new(screen), new(screen))
	}()
	select {
	case code := <-ended:
		t.Fatalf("ping ended with %d", code)
	case <-time.After(500 * time.Millisecond):
	}
	if err := (connection{server.ClientURL(), "somebody-elses"}).write(dir); err != nil {
		t.Fatal(err)
	}
	startCoordinator(t, "--nats", server.ClientURL(), "--token", "somebody-elses")
	if code := <-ended; code != 0 {
		t.Errorf("ping ended with %d", code)
	}
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

// A repeat is answered as what it repeats was, accepted or refused; before, a refused one hung for two minutes.
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
