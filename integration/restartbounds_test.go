package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// soonAfterRestart is how long files and new streams may take to work after a worker has said that it is ready.
const soonAfterRestart = 5 * time.Second

// TestFilesAndNewStreamsWorkSoonAfterTheWorkersRestart kills a worker. Once its successor is ready, the first file is
// written and the first connection to a server is open soon, without a second try of the caller.
func TestFilesAndNewStreamsWorkSoonAfterTheWorkersRestart(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(3 * time.Minute)
	s := serve(ctx, t, f, "soon", nil)
	s.dial(ctx, "tcp", "localhost:7000").Close()
	files := s.box.Files()
	worker := f.Processes("worker")[0]
	for _, end := range []string{"kill -9", "SIGTERM"} {
		if end == "SIGTERM" {
			worker.Stop()
		} else {
			worker.Kill()
		}
		worker = worker.Restart() // returns when the worker is ready
		began := time.Now()
		var first errgroup.Group
		var wrote, dialled time.Duration
		first.Go(func() error {
			_, err := files.WriteFile(ctx, "/tmp/after", []byte(end))
			wrote = time.Since(began)
			return err
		})
		first.Go(func() error {
			conn, err := s.box.DialContext(ctx, "tcp", "localhost:7000")
			if err != nil {
				return err
			}
			dialled = time.Since(began)
			return conn.Close()
		})
		if err := first.Wait(); err != nil {
			t.Fatalf("after %s: %v", end, err)
		}
		t.Logf("after %s of the worker, a file was written within %s, and a connection was open within %s", end, wrote,
			dialled)
		if took := max(wrote, dialled); took > soonAfterRestart {
			t.Errorf("after %s: it took %s, want at most %s", end, took, soonAfterRestart)
		}
		if got, err := files.ReadFile(ctx, "/tmp/after"); err != nil || string(got) != end {
			t.Errorf("after %s, the file has %q, %v", end, got, err)
		}
	}
}

// TestAWaitForAPortOutlivesNATS restarts NATS while somebody waits for a server, and starts the server afterwards.
func TestAWaitForAPortOutlivesNATS(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Killable: true})
	ctx := f.Context(2 * time.Minute)
	box := f.Create("outlives")
	var waits errgroup.Group
	waits.Go(func() error { return box.WaitForPort(ctx, 8080) })
	waits.Go(func() error { return box.WaitForHTTP(ctx, 8080, "/index.html", 200) })
	f.Eventually(30*time.Second, "the worker has tried the port", func() error {
		r, err := box.Exec(ctx, script("ps"))
		if err == nil && !strings.Contains(string(r.Stdout), control.HelperName) {
			err = errors.New("no helper of the worker runs in the sandbox")
		}
		return err
	})
	f.RestartServer()
	if _, err := box.Start(ctx, script("echo x >/tmp/index.html; exec httpd -f -p 8080 -h /tmp")); err != nil {
		t.Fatal(err)
	}
	if err := waits.Wait(); err != nil {
		t.Errorf("a wait did not survive a restart of NATS: %v", err)
	}
}
