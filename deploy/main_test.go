package deploy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
)

// binaries is the directory of the programs that the tests have built.
var binaries string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "boxfleet-deploy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// builds holds one function for each program, which builds it once.
var builds sync.Map

// program builds a program of this module or of a module that it requires, and returns its path.
func program(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(binaries, filepath.Base(strings.TrimSuffix(pkg, "/v2")))
	build, _ := builds.LoadOrStore(pkg, sync.OnceValue(func() error {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", pkg, err, out)
		}
		return nil
	}))
	if err := build.(func() error)(); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	boxfleetProgram = "github.com/boxfleet/boxfleet/cmd/boxfleet"
	natsProgram     = "github.com/nats-io/nats-server/v2"
)

// start starts a process, waits until it has printed a text, and ends it with the test.
func start(t *testing.T, until string, cmd *exec.Cmd) *eventually.Buffer {
	t.Helper()
	printed := &eventually.Buffer{}
	cmd.Stdout, cmd.Stderr = printed, printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the test sees in the output why a process ended
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if the process has ended
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Errorf("%s did not end within 20 s of SIGTERM", cmd)
			_ = cmd.Process.Kill() // fails if the process has just ended
			<-ended
		}
		if t.Failed() {
			t.Logf("%s printed:\n%s", cmd, printed)
		}
	})
	eventually.Holds(t, 30*time.Second, fmt.Sprintf("%s prints %q", cmd, until),
		func() bool { return strings.Contains(printed.String(), until) })
	return printed
}

// run runs a command that has to succeed, and returns its standard output.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var failure strings.Builder
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s%s", cmd, err, out, failure.String())
	}
	return string(out)
}

// within returns a context that ends soon enough for the test to report what hung. Unlike the context of t, it can be
// used in a cleanup.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	t.Cleanup(cancel)
	return ctx
}
