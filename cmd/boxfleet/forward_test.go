package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/eventually"
)

func TestForwardsAreParsed(t *testing.T) {
	for arg, want := range map[string]forward{
		"80":          {"80", "tcp", "localhost:80"},
		"9000:80":     {"9000", "tcp", "localhost:80"},
		"0:65535":     {"0", "tcp", "localhost:65535"},
		"0:/run/a.s:": {"0", "unix", "/run/a.s:"},
	} {
		if got, err := parseForward(arg); err != nil || got != want {
			t.Errorf("%q: %+v, %v", arg, got, err)
		}
	}
	for _, arg := range []string{"", "0", "x", "80:", ":80", "80:0", "65536", "-1:80", "1:2:3", "/run/a", "x:/run/a",
		"1:a/b"} {
		if got, err := parseForward(arg); err == nil {
			t.Errorf("%q: %+v without an error", arg, got)
		}
	}
}

// listens finds where `boxfleet forward` listens, for the web server and for the server that hashes its input.
var listens = regexp.MustCompile(`(127\.0\.0\.1:\d+) -> port 8080 of sandbox web
(127\.0\.0\.1:\d+) -> port 7000 of sandbox web`)

func TestForwardAndWaitReachAServerWithoutANetwork(t *testing.T) {
	fleetOfOne(t)
	stop := startUp(t)
	removeHostMark(t)
	expectOf(t, []string{"sandbox", "create", "--image", image, "--id", "web", "--memory", "64m", "--network", "none",
		"--",
		"sh", "-c", "echo hello >/tmp/index.html; nc -ll -p 7000 -e sha256sum & exec httpd -f -p 8080 -h /tmp"}, 0, "web\n")
	expect(t, "wait web --port 8080 --deadline 30s", 0, "web\n")
	expect(t, "wait web --port 7000 --deadline 30s", 0, "web\n")
	expect(t, "wait web --http 8080/index.html --deadline 30s", 0, "web\n")
	expect(t, "wait web --http 8080/none=404 --deadline 30s", 0, "web\n")
	code, _, stderr := call(t.Context(), "", "wait", "web", "--http", "8080/none", "--deadline", "2s")
	if code != exitFailure && code != exitNotRun || !strings.Contains(stderr, "the server answers with status 404") {
		t.Errorf("a wait that ends too late: %d, %s", code, stderr)
	}
	forwardsUntilInterrupted(t)
	watchesFiles(t)
	copiesShowProgress(t)
	expect(t, "sandbox delete web", 0, "web\n")
	if code := stop(); code != 0 {
		t.Errorf("up ended with %d", code)
	}
}

func forwardsUntilInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr eventually.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"forward", "web", "0:/tmp/none", "0:8080", "0:7000"}, strings.NewReader(""), &stdout,
			&stderr)
	}()
	eventually.Holds(t, patience, "forward listens", func() bool {
		return strings.Count(stdout.String(), "\n") == 3 || len(ended) > 0
	})
	at := listens.FindStringSubmatch(stdout.String())
	if at == nil {
		t.Fatalf("forward printed %q, %q", stdout.String(), stderr.String())
	}
	getHello(t, "http://"+at[1]+"/index.html")
	hashesThrough(t, at[2])
	other, _, _ := strings.Cut(stdout.String(), " ")
	if conn, err := net.Dial("tcp", other); err != nil {
		t.Error(err)
	} else {
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
			t.Errorf("a connection to no server: read %d bytes, %v; want a reset", n, err)
		}
		conn.Close()
	}
	if !strings.Contains(stderr.String(), "/tmp/none") {
		t.Errorf("forward does not say why it reset the connection: %q", stderr.String())
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("forward ended with %d: %s", code, stderr.String())
	}
	if conn, err := net.Dial("tcp", at[1]); err == nil {
		conn.Close()
		t.Error("the port is still open")
	}
}

func getHello(t *testing.T, url string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "hello\n" {
		t.Errorf("the server answered %q, %v", body, err)
	}
}

// hashesThrough sends 3 MiB through each of ten connections at once, ends its side, and then receives the hash.
func hashesThrough(t *testing.T, address string) {
	t.Helper()
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data) // never fails
	want := fmt.Sprintf("%x  -\n", sha256.Sum256(data))
	var group errgroup.Group
	for range 10 {
		group.Go(func() error {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := conn.Write(data); err != nil {
				return err
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				return err
			}
			got, err := io.ReadAll(conn)
			if err != nil || string(got) != want {
				return fmt.Errorf("the server answered %q, want %q: %w", got, want, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
