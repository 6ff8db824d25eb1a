package docker_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/docker"
	"github.com/boxfleet/boxfleet/sdk/environment/environmenttest"
)

const image = "boxfleet/demo:busybox"

// start starts a container of the test image.
func start(t *testing.T, c docker.Config) *docker.Environment {
	t.Helper()
	if err := exec.Command("docker", "image", "inspect", image).Run(); err != nil {
		t.Skipf("no image %s: run make image", image)
	}
	c.Image = image
	env, err := docker.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	return env
}

// TestConformance runs commands as a user who may not do everything.
func TestConformance(t *testing.T) {
	t.Parallel()
	environmenttest.Run(t, start(t, docker.Config{User: "box", Dir: "/home/box"}), environmenttest.Sample())
}

func TestAContainerThatRunsIsUsedAndKept(t *testing.T) {
	t.Parallel()
	made := start(t, docker.Config{})
	used, err := docker.Use(t.Context(), made.Container())
	if err != nil {
		t.Fatal(err)
	}
	if err := used.WriteFile(t.Context(), "/tmp/file", []byte("shared")); err != nil {
		t.Fatal(err)
	}
	if err := used.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := made.ReadFile(t.Context(), "/tmp/file"); string(got) != "shared" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAClosedContainerIsRemovedAndUnavailable(t *testing.T) {
	t.Parallel()
	env := start(t, docker.Config{})
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := environment.Execute(t.Context(), env, "echo ran", environment.Options{})
	if environment.KindOf(err) != environment.Unavailable {
		t.Error(err)
	}
	if exec.Command("docker", "container", "inspect", env.Container()).Run() == nil {
		t.Error("the container is still there")
	}
}

func TestANewContainerIsLimited(t *testing.T) {
	t.Parallel()
	env := start(t, docker.Config{Memory: 64 << 20, PIDs: 99})
	out, err := exec.Command("docker", "inspect", "--format", "{{.HostConfig.NetworkMode}} {{.HostConfig.CapDrop}} "+
		"{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}} {{.HostConfig.SecurityOpt}}", env.Container()).Output()
	if want := "none [ALL] 67108864 99 [no-new-privileges]"; err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("got %s, want %s, %v", out, want, err)
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "--privileged", "-v", "a b", "a\n", "$(id)"} {
		if _, err := docker.Start(t.Context(), docker.Config{Image: bad}); environment.KindOf(err) != environment.Invalid {
			t.Errorf("image %q: %v", bad, err)
		}
		if _, err := docker.Use(t.Context(), bad); environment.KindOf(err) != environment.Invalid {
			t.Errorf("container %q: %v", bad, err)
		}
	}
	for name, c := range map[string]docker.Config{"user": {Image: image, User: "-u"}, "dir": {Image: image, Dir: "a"},
		"network": {Image: image, Network: "--a"}, "memory": {Image: image, Memory: -1}} {
		if _, err := docker.Start(t.Context(), c); environment.KindOf(err) != environment.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := docker.Start(t.Context(), docker.Config{Image: "no-such-image:x"}); environment.KindOf(err) !=
		environment.Unavailable {
		t.Error(err)
	}
	if _, err := docker.Use(t.Context(), "no-such-container"); environment.KindOf(err) != environment.Unavailable {
		t.Error(err)
	}
}
