package docker_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

func TestAContainersLifeCycle(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	spec := b.sleeper()
	spec.Labels = map[string]string{docker.LabelSandbox: "s1"}
	id := b.create(t, spec, false)

	c, err := b.Inspect(ctx, spec.Name)
	check(t, err)
	if c.ID != id || c.Name != spec.Name || c.State != "created" || c.Running || c.Pid != 0 || !c.StartedAt.IsZero() ||
		c.Created.IsZero() {
		t.Errorf("a created container is described as %+v", c)
	}
	if c.Labels[docker.LabelSandbox] != "s1" || c.Labels[docker.LabelDeployment] != b.deployment {
		t.Errorf("the container has the labels %v", c.Labels)
	}
	check(t, b.StartContainer(ctx, id))
	check(t, b.StartContainer(ctx, id)) // starting a running container is no error
	c, err = b.Inspect(ctx, id)
	check(t, err)
	if c.State != "running" || !c.Running || c.Pid == 0 || c.StartedAt.IsZero() {
		t.Errorf("a started container is described as %+v", c)
	}
	all, err := b.Containers(ctx)
	check(t, err)
	if len(all) != 1 || all[0].ID != id || all[0].Name != spec.Name || !all[0].Running ||
		all[0].Labels[docker.LabelSandbox] != "s1" {
		t.Errorf("the containers are listed as %+v", all)
	}
	b.awaitUp(t, id)
	check(t, b.StopContainer(ctx, id, 20*time.Second))
	c, err = b.Inspect(ctx, id)
	check(t, err)
	if c.State != "exited" || c.Running || c.ExitCode != 3 || c.FinishedAt.IsZero() {
		t.Errorf("a stopped container is described as %+v", c)
	}
	check(t, b.StopContainer(ctx, id, 0))
	check(t, b.KillContainer(ctx, id))
	check(t, b.StartContainer(ctx, id))
	check(t, b.KillContainer(ctx, id))
	if c := b.ended(t, id); c.ExitCode != 137 {
		t.Errorf("a killed container is described as %+v, want exit code 137", c)
	}
	check(t, b.RemoveContainer(ctx, id))
	if _, err := b.Inspect(ctx, id); !docker.IsNotFound(err) {
		t.Errorf("inspecting a removed container: got %v, want not found", err)
	}
}

func TestRemovingAbsentObjectsIsNoError(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	for name, remove := range map[string]func() error{
		"remove a container": func() error { return b.RemoveContainer(ctx, "boxfleet-absent") },
		"stop a container":   func() error { return b.StopContainer(ctx, "boxfleet-absent", time.Second) },
		"kill a container":   func() error { return b.KillContainer(ctx, "boxfleet-absent") },
		"remove a network":   func() error { return b.RemoveNetwork(ctx, "boxfleet-absent") },
		"remove the host id": func() error { return b.RemoveHostID(ctx) },
	} {
		if err := remove(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.StartContainer(ctx, "boxfleet-absent"); !docker.IsNotFound(err) {
		t.Errorf("starting an absent container: got %v, want not found", err)
	}
	if err := b.RemoveContainer(ctx, ""); protocol.CodeOf(err) != protocol.InvalidArgument {
		t.Errorf("removing a container without a name: got %v, want invalid_argument", err)
	}
}

func TestConcurrentRemovalsOfAContainerAllSucceed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.create(t, b.sleeper(), true)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := b.RemoveContainer(t.Context(), id); err != nil {
				t.Error(err)
			}
			if _, err := b.Inspect(t.Context(), id); !docker.IsNotFound(err) {
				t.Errorf("the removal has returned; inspecting the container: got %v, want not found", err)
			}
		})
	}
	wg.Wait()
}

func TestAContainerNameCanBeUsedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.create(t, b.sleeper(), false)
	if _, err := b.CreateContainer(t.Context(), b.sleeper()); protocol.CodeOf(err) != protocol.AlreadyExists {
		t.Errorf("creating a second container with the same name: got %v, want already_exists", err)
	}
}

func TestALimitedContainerIsHardened(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	outside := t.TempDir()
	check(t, os.Chmod(outside, 0o777))
	spec := docker.ContainerSpec{
		Name: b.name("hard"), Image: dockertest.Image, Network: "none", Hostname: "inside",
		Entrypoint: []string{"/bin/sh", "-c", `exec >/out/report 2>&1
			grep -E '^(CapEff|CapBnd|NoNewPrivs|Uid):' /proc/self/status | tr '\t' ' '
			hostname; pwd; echo $GREETING
			cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null
			cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null
			touch /ro/x && echo WRITABLE
			exit 5`},
		Env: []string{"GREETING=hello"}, User: "1000:1000", Cwd: "/home/box",
		Binds: []docker.Bind{
			{Source: outside, Target: "/out"},
			{Source: outside, Target: "/ro", ReadOnly: true, NonRecursive: true},
		},
		CPU: 0.5, Memory: 64 << 20, PIDs: 32,
		CapDrop: []string{"ALL"}, CapAdd: []string{"KILL"}, NoNewPrivileges: true,
	}
	id := b.create(t, spec, true)
	if c := b.ended(t, id); c.ExitCode != 5 {
		t.Errorf("the container ended as %+v, want exit code 5", c)
	}
	report, err := os.ReadFile(filepath.Join(outside, "report"))
	check(t, err)
	for _, want := range []string{
		"CapEff: 0000000000000000\n", "CapBnd: 0000000000000020\n", "NoNewPrivs: 1\n", "Uid: 1000 ",
		"inside\n/home/box\nhello\n67108864\n32\n", "Read-only file system",
	} {
		if !strings.Contains(string(report), want) {
			t.Errorf("the container's report lacks %q:\n%s", want, report)
		}
	}
	if strings.Contains(string(report), "WRITABLE") {
		t.Errorf("the container could write to its read-only bind:\n%s", report)
	}
	check(t, b.RemoveContainer(ctx, id))
}

func TestErrorsSayWhyAContainerCannotBeCreatedOrStarted(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()

	spec := b.sleeper()
	spec.Image = "boxfleet/never-made:none"
	if _, err := b.CreateContainer(ctx, spec); !errors.Is(err, docker.ErrImageNotFound) || docker.IsNotFound(err) {
		t.Errorf("creating a container of a missing image: got %v, want %v", err, docker.ErrImageNotFound)
	}
	spec = b.sleeper()
	spec.Binds = []docker.Bind{{Source: "/boxfleet/absent", Target: "/x"}}
	if _, err := b.CreateContainer(ctx, spec); protocol.CodeOf(err) != protocol.InvalidArgument {
		t.Errorf("creating a container with a missing bind source: got %v, want invalid_argument", err)
	}
	startFailed := &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonStartFailed}
	spec = b.sleeper()
	spec.Entrypoint = []string{"/no/such/program"}
	id := b.create(t, spec, false)
	if err := b.StartContainer(ctx, id); !errors.Is(err, startFailed) {
		t.Errorf("starting a missing program: got %v, want %v", err, startFailed)
	}
	check(t, b.RemoveContainer(ctx, id))

	// The engine also answers 404 if an existing container is started and its network is gone.
	network := docker.NetworkSpec{Name: b.name("net"), Subnet: freeSubnet(t, b.Engine)}
	check(t, b.CreateNetwork(ctx, network))
	spec = b.sleeper()
	spec.Network = network.Name
	id = b.create(t, spec, false)
	check(t, b.RemoveNetwork(ctx, network.Name))
	if err := b.StartContainer(ctx, id); !errors.Is(err, startFailed) {
		t.Errorf("starting a container whose network is gone: got %v, want %v", err, startFailed)
	}
}

func TestFilesAreCopiedIntoACreatedContainer(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	outside := t.TempDir()
	spec := b.sleeper()
	spec.Entrypoint = []string{"/bin/sh", "-c",
		"cat /home/box/file >/out/file; stat -c '%u:%g %a' /home/box/file >>/out/file"}
	spec.Binds = []docker.Bind{{Source: outside, Target: "/out"}}
	id := b.create(t, spec, false)

	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	check(t, w.WriteHeader(&tar.Header{Name: "file", Mode: 0o640, Uid: 1000, Gid: 1000, Size: 6}))
	_, err := w.Write([]byte("bytes\n"))
	check(t, err)
	check(t, w.Close())
	check(t, b.CopyTo(ctx, id, "/home/box", bytes.NewReader(archive.Bytes())))
	check(t, b.StartContainer(ctx, id))
	b.ended(t, id)
	got, err := os.ReadFile(filepath.Join(outside, "file"))
	check(t, err)
	if string(got) != "bytes\n1000:1000 640\n" {
		t.Errorf("the container read %q from the copied file", got)
	}

	err = b.CopyTo(ctx, id, "/no/such/dir", bytes.NewReader(archive.Bytes()))
	if !errors.Is(err, &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonCopyFailed}) {
		t.Errorf("copying to a missing directory: got %v, want copy_failed", err)
	}
	if err := b.CopyTo(ctx, "boxfleet-absent", "/", bytes.NewReader(archive.Bytes())); !docker.IsNotFound(err) {
		t.Errorf("copying to a missing container: got %v, want not found", err)
	}
	broken := errors.New("the source broke")
	if err := b.CopyTo(ctx, id, "/home/box", iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("copying from a broken source: got %v, want the source's error", err)
	}
}

// A request with a count would give each container the same first GPUs.
func TestGPUsAreRequestedByID(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var asked container.CreateRequest
	b.proxy.Inject(func(r *http.Request) dockertest.Fault {
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			body, err := io.ReadAll(r.Body)
			check(t, errors.Join(err, json.Unmarshal(body, &asked)))
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		return dockertest.Fault{}
	})
	spec := b.sleeper()
	spec.GPUs = []string{"0", "2"}
	b.create(t, spec, false)
	b.proxy.Inject(nil)
	if len(asked.HostConfig.DeviceRequests) != 1 {
		t.Fatalf("the request has the device requests %+v, want one", asked.HostConfig.DeviceRequests)
	}
	if d := asked.HostConfig.DeviceRequests[0]; !slices.Equal(d.DeviceIDs, spec.GPUs) || d.Count != 0 ||
		!slices.Equal(d.Capabilities[0], []string{"gpu"}) {
		t.Errorf("the request asks for %+v, want the GPUs %v and no count", d, spec.GPUs)
	}
}
