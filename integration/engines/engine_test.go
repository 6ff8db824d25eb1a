package engines_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// TestAnEngineLivesAndLeavesNothing makes all its checks on one engine, because starting an engine is slow.
func TestAnEngineLivesAndLeavesNothing(t *testing.T) {
	var dir, namespace string
	t.Run("life", func(t *testing.T) {
		e := engines.Start(t, "life")
		dir, namespace = filepath.Dir(e.Socket), e.Namespace()
		engines.LoadImage(t, e, dockertest.Image)
		client, err := docker.Connect(t.Context(), docker.Config{
			Host: e.Host, Deployment: "test-life", Fence: docker.Unfenced, CallTimeout: 30 * time.Second,
		})
		check(t, err)
		defer client.Close()
		id := sleeper(t, client)

		e.Pause()
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := client.Ping(short); !errors.Is(err, docker.ErrEngineUnavailable) {
			t.Errorf("paused: %v", err)
		}
		e.Continue()
		check(t, client.Ping(t.Context()))

		e.Kill()
		if _, err := client.Inspect(t.Context(), id); !errors.Is(err, docker.ErrEngineUnavailable) {
			t.Errorf("killed: %v", err)
		}
		e.Restart()
		c, err := client.Inspect(t.Context(), id)
		check(t, err)
		t.Logf("after the daemon was killed and started, the container is %s", c.State)
		check(t, client.StartContainer(t.Context(), id))
		e.Kill() // a kill with a running container leaves the most remains
	})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	if _, err := os.Stat("/run/netns/" + namespace); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the namespace is left: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	if strings.Contains(string(mounts), dir) {
		t.Error("mounts are left")
	}
	if out, err := exec.Command("pgrep", "-f", dir).Output(); err == nil {
		t.Errorf("processes are left: %s", out)
	}
}

func TestTwoEnginesDoNotSeeEachOther(t *testing.T) {
	one, two := engines.Start(t, "one"), engines.Start(t, "two")
	ids := map[string]string{}
	for _, e := range []*engines.Engine{one, two, engines.Default(t)} {
		client, err := docker.Connect(t.Context(),
			docker.Config{Host: e.Host, Deployment: "test-apart", Fence: docker.Unfenced})
		check(t, err)
		defer client.Close()
		id, err := client.HostID(t.Context())
		check(t, err)
		defer func() { check(t, client.RemoveHostID(context.Background())) }()
		if other := ids[id]; other != "" {
			t.Errorf("%s and %s have the same host id", e.Name, other)
		}
		ids[id] = e.Name
	}
}

func sleeper(t *testing.T, client *docker.Engine) string {
	t.Helper()
	check(t, client.CreateNetwork(t.Context(), docker.NetworkSpec{Name: "net"}))
	id, err := client.CreateContainer(t.Context(), docker.ContainerSpec{
		Name: "sleeper", Image: dockertest.Image, Network: "net", Entrypoint: []string{"/bin/sh", "-c",
			"trap exit TERM; while :; do sleep 0.05; done"},
	})
	check(t, err)
	check(t, client.StartContainer(t.Context(), id))
	return id
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
