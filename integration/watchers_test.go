package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// watching is the source code of a program that takes file watchers, one or as many as the kernel allows, and keeps
// them.
const watching = `package main

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

func main() {
	for n := 0; ; n++ {
		if _, err := syscall.InotifyInit1(0); err != nil && len(os.Args) > 1 {
			fmt.Println(err)
			os.Exit(1)
		} else if err != nil {
			time.Sleep(time.Hour)
		}
		if len(os.Args) > 1 {
			return
		}
	}
}
`

// The kernel counts file watchers per user id. Therefore root of one sandbox can use up the file watchers of the other
// sandboxes and of the host.
func TestASandboxThatTakesAllFileWatchersLosesThem(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	check(t, err)
	var most int
	if _, err := fmt.Sscan(string(data), &most); err != nil || most > 4096 {
		t.Skipf("root has %d file watchers here: too many to use up in a test", most)
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "main.go"), watching, 0o644, time.Now())
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "watch"), filepath.Join(dir, "main.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{dir}})
	ctx := f.Context(2 * time.Minute)
	create := func(id string) *sdk.Sandbox {
		t.Helper()
		spec := f.Spec()
		spec.Mounts = []protocol.Mount{{Source: dir, Target: "/w"}}
		s, err := f.Client.Create(ctx, spec, sdk.WithID(id))
		check(t, err)
		return s
	}
	greedy, other := create("greedy"), create("other")
	x, err := greedy.Start(ctx, protocol.ExecSpec{Command: []string{"/w/watch"}})
	check(t, err)
	r, err := x.Wait(ctx)
	if err != nil || r.ExitCode == nil || *r.ExitCode != 137 {
		t.Fatalf("the exec that takes all of them ended with %+v, %v", r, err)
	}
	// The line is logged after the processes have ended.
	f.Eventually(10*time.Second, "the worker's log names the sandbox", func() error {
		if log := w.Log(); !strings.Contains(log, "used up the file watchers") ||
			!strings.Contains(log, "default/greedy") {
			return errors.New("the log does not name it yet")
		}
		return nil
	})
	f.Eventually(30*time.Second, "another sandbox gets a file watcher", func() error {
		r, err := other.Exec(ctx, protocol.ExecSpec{Command: []string{"/w/watch", "one"}})
		if err == nil && (r.ExitCode == nil || *r.ExitCode != 0) {
			err = fmt.Errorf("the exec ended with %+v: %s", r, r.Stdout)
		}
		return err
	})
	f.Judge()
}
