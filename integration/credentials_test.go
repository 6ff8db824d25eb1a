package integration

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestAWorkerWorksWithItsCredentials lets a worker do its work, kills the worker, restarts NATS, and each time lets the
// worker work again. The fleet fails a test in which NATS refuses anything to one of the fleet's processes.
func TestAWorkerWorksWithItsCredentials(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Killable: true})
	ctx := f.Context(3 * time.Minute)
	spec := f.Spec()
	spec.Command = []string{"sh", "-c", "echo serving; exec sleep 1000"}
	spec.RequiredServices = protocol.Services{"db": {Image: spec.Image,
		Command: []string{"sh", "-c", "echo querying; exec sleep 1000"}}}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 20 // more output than fits into an event
	works := func(when string) {
		t.Helper()
		var out bytes.Buffer
		r, err := s.Exec(ctx, script(fmt.Sprintf("head -c %d /dev/zero; exit 3", size)), sdk.WithStdout(&out))
		if err != nil || r.ExitCode == nil || *r.ExitCode != 3 || out.Len() != size {
			t.Fatalf("%s: an exec prints %d bytes: %+v, %v", when, out.Len(), r, err)
		}
		if r, err := s.Exec(ctx, script("echo short")); err != nil || string(r.Stdout) != "short\n" {
			t.Fatalf("%s: an exec prints %+v, %v", when, r, err)
		}
	}
	works("at first")
	for _, c := range []struct {
		want string
		opts []sdk.LogsOption
	}{{"serving\n", nil}, {"querying\n", []sdk.LogsOption{sdk.WithService("db")}}} {
		f.Eventually(20*time.Second, "the output of a container's own command is stored", func() error {
			got := ""
			for k, err := range s.Logs(ctx, c.opts...) {
				if err != nil {
					return err
				}
				got += string(k.Data)
			}
			if got != c.want {
				return protocol.Errorf(protocol.NotFound, "", "%q is stored, want %q", got, c.want)
			}
			return nil
		})
	}
	running, err := s.Start(ctx, script("echo begins; while [ ! -e /tmp/enough ]; do sleep 0.1; done; echo ends"))
	if err != nil {
		t.Fatal(err)
	}
	w := f.Processes("worker")[0]
	w.Kill()
	w.Restart()
	works("after the worker was killed")
	f.RestartServer()
	works("after NATS was restarted")
	if _, err := s.Exec(ctx, script("touch /tmp/enough")); err != nil {
		t.Fatal(err)
	}
	if r, err := running.Wait(ctx); err != nil || string(r.Stdout) != "begins\nends\n" {
		t.Fatalf("the exec that ran all the time prints %+v, %v", r, err)
	}
	importsAnImage(ctx, t, f)
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
}

// importsAnImage imports an image, creates a sandbox with it, and removes the import.
func importsAnImage(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	t.Helper()
	host, archive := engines.Default(t).Host, filepath.Join(t.TempDir(), "archive.tar")
	ref := strings.ToLower("credentials-"+t.Name()) + ":1"
	if text, err := exec.Command("docker", "-H", host, "save", "-o", archive, fleet.Image).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	want := importArchive(ctx, t, f, archive, ref)
	if _, err := f.Operator.Images().Wait(ctx, want, nil); err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	spec.Image = ref
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if err := f.Operator.Images().Remove(ctx, ref); err != nil {
		t.Fatal(err)
	}
}
