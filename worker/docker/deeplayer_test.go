package docker_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/removal"
)

// To remove a container, an engine needs a file descriptor for each level of nested directories in the container's
// layer. If there are more levels than descriptors, the engine alone can never remove the container.
func TestAContainerWithDeeplyNestedDirectoriesIsRemoved(t *testing.T) {
	levels, err := strconv.Atoi(os.Getenv("BOXFLEET_LEVELS"))
	if err != nil || os.Getuid() != 0 {
		t.Skip("needs root and half a minute: run `make deep`")
	}
	b, ctx := newBench(t), t.Context()
	emptied := 0
	e := connect(t, docker.Config{Host: b.host, Deployment: b.deployment, Fence: docker.Unfenced,
		EmptyLayer: func(ctx context.Context, dir string) error {
			emptied++
			return removal.Contents(ctx, dir)
		}})
	spec := b.sleeper()
	id := b.create(t, spec, false)
	out, err := exec.Command("docker", "inspect", "-f", "{{.GraphDriver.Data.UpperDir}}", id).Output()
	layer := strings.TrimSpace(string(out))
	if err != nil || !filepath.IsAbs(layer) {
		t.Skipf("the engine does not report the directory of a layer: %q, %v", layer, err)
	}
	at, err := unix.Open(layer, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	for range levels {
		check(t, unix.Mkdirat(at, "d", 0o700))
		below, err := unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		check(t, err)
		unix.Close(at)
		at = below
	}
	unix.Close(at)
	if err := b.RemoveContainer(ctx, id); err == nil {
		t.Skip("the engine has enough descriptors for all levels")
	} else if n := len(err.Error()); n > 4<<10 {
		t.Errorf("the error of the removal has %d bytes, want at most 4 KiB", n)
	}
	if err := e.RemoveContainer(ctx, id); err != nil {
		t.Fatalf("removing the container with EmptyLayer: %.500v", err)
	}
	if c, err := e.Inspect(ctx, id); !docker.IsNotFound(err) {
		t.Errorf("inspecting the removed container: got %+v and error %v, want not found", c, err)
	}
	if emptied != 1 {
		t.Errorf("EmptyLayer was called %d times, want once", emptied)
	}
}
