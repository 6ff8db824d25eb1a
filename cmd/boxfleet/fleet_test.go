package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"net"
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
	ctx, cancel := context.WithCancel(context.Background())
	var stdout, stderr screen
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"coordinator"}, strings.NewReader(""), &stdout, &stderr) }()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != 0 {
			t.Errorf("the coordinator ended with %d: %s", code, stderr.String())
		}
	})
	eventually(t, "the coordinator is ready", func() bool { return strings.Contains(stdout.String(), "ready: coordinator") })
	return server
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
		ended <- run(t.Context(), []string{"ping", "--wait", "1m", "--nats", "nats://127.0.0.1:" + strconv.Itoa(port)}, strings.NewReader(""), new(screen), &stderr)
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

func TestARemovedImageIsNamed(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	var root bytes.Buffer
	archive := tar.NewWriter(&root)
	if err := errors.Join(archive.WriteHeader(&tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}), archive.Close()); err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string]string{"text": "tools:1\n", "json": `{"ref":"tools:1"}` + "\n"} {
		if code, _, stderr := call(t.Context(), root.String(), "image", "import", "-", "--ref", "tools:1", "--no-wait"); code != 0 {
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
			if code, _, stderr := call(ctx, "", strings.Fields(c.line)...); code != c.code || !strings.Contains(stderr, c.stderr) {
				t.Errorf("%s: want %d and %q, got %d and %q", c.line, c.code, c.stderr, code, stderr)
			}
		}
	}
}
