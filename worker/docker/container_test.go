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
		t.Errorf("created: %+v", c)
	}
	if c.Labels[docker.LabelSandbox] != "s1" || c.Labels[docker.LabelDeployment] != b.deployment {
		t.Errorf("labels: %v", c.Labels)
	}
	check(t, b.StartContainer(ctx, id))
	check(t, b.StartContainer(ctx, id)) // started twice is started
	c, err = b.Inspect(ctx, id)
	check(t, err)
	if c.State != "running" || !c.Running || c.Pid == 0 || c.StartedAt.IsZero() {
		t.Errorf("started: %+v", c)
	}
	all, err := b.Containers(ctx)
	check(t, err)
	if len(all) != 1 || all[0].ID != id || all[0].Name != spec.Name || !all[0].Running ||
		all[0].Labels[docker.LabelSandbox] != "s1" {
		t.Errorf("listed: %+v", all)
	}
	b.awaitUp(t, id)
	check(t, b.StopContainer(ctx, id, 20*time.Second))
	c, err = b.Inspect(ctx, id)
	check(t, err)
	if c.State != "exited" || c.Running || c.ExitCode != 3 || c.FinishedAt.IsZero() {
		t.Errorf("stopped: %+v", c)
	}
	check(t, b.StopContainer(ctx, id, 0))
	check(t, b.KillContainer(ctx, id))
	check(t, b.StartContainer(ctx, id))
	check(t, b.KillContainer(ctx, id))
	if c := b.ended(t, id); c.ExitCode != 137 {
		t.Errorf("killed: %+v", c)
	}
	check(t, b.RemoveContainer(ctx, id))
	if _, err := b.Inspect(ctx, id); !docker.IsNotFound(err) {
		t.Errorf("after removal: %v", err)
	}
}

func TestRemovingAbsentObjectsIsNoError(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	for name, remove := range map[string]func() error{
		"container":      func() error { return b.RemoveContainer(ctx, "boxfleet-absent") },
		"stop":           func() error { return b.StopContainer(ctx, "boxfleet-absent", time.Second) },
		"kill":           func() error { return b.KillContainer(ctx, "boxfleet-absent") },
		"network":        func() error { return b.RemoveNetwork(ctx, "boxfleet-absent") },
		"mark of a host": func() error { return b.RemoveHostID(ctx) },
	} {
		if err := remove(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.StartContainer(ctx, "boxfleet-absent"); !docker.IsNotFound(err) {
		t.Errorf("starting an absent container: got %v", err)
	}
	if err := b.RemoveContainer(ctx, ""); protocol.CodeOf(err) != protocol.InvalidArgument {
		t.Errorf("removing nothing by name: %v", err)
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
				t.Errorf("the removal has returned, but the container still exists: %v", err)
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
		t.Errorf("got %v", err)
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
		t.Errorf("ended: %+v", c)
	}
	report, err := os.ReadFile(filepath.Join(outside, "report"))
	check(t, err)
	for _, want := range []string{
		"CapEff: 0000000000000000\n", "CapBnd: 0000000000000020\n", "NoNewPrivs: 1\n", "Uid: 1000 ",
		"inside\n/home/box\nhello\n67108864\n32\n", "Read-only file system",
	} {
		if !strings.Contains(string(report), want) {
			t.Errorf("%q is not in\n%s", want, report)
		}
	}
	if strings.Contains(string(report), "WRITABLE") {
		t.Errorf("the read-only bind is writable:\n%s", report)
	}
	check(t, b.RemoveContainer(ctx, id))
}

func TestErrorsSayWhyAContainerCannotBeCreatedOrStarted(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()

	spec := b.sleeper()
	spec.Image = "boxfleet/never-made:none"
	if _, err := b.CreateContainer(ctx, spec); !errors.Is(err, docker.ErrImageNotFound) || docker.IsNotFound(err) {
		t.Errorf("missing image: %v", err)
	}
	spec = b.sleeper()
	spec.Binds = []docker.Bind{{Source: "/boxfleet/absent", Target: "/x"}}
	if _, err := b.CreateContainer(ctx, spec); protocol.CodeOf(err) != protocol.InvalidArgument {
		t.Errorf("missing bind source: %v", err)
	}
	startFailed := &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonStartFailed}
	spec = b.sleeper()
	spec.Entrypoint = []string{"/no/such/program"}
	id := b.create(t, spec, false)
	if err := b.StartContainer(ctx, id); !errors.Is(err, startFailed) {
		t.Errorf("missing program: %v", err)
	}
	check(t, b.RemoveContainer(ctx, id))

	// Starting a container whose network is gone also answers 404, although the container exists.
	network := docker.NetworkSpec{Name: b.name("net"), Subnet: freeSubnet(t, b.Engine)}
	check(t, b.CreateNetwork(ctx, network))
	spec = b.sleeper()
	spec.Network = network.Name
	id = b.create(t, spec, false)
	check(t, b.RemoveNetwork(ctx, network.Name))
	if err := b.StartContainer(ctx, id); !errors.Is(err, startFailed) {
		t.Errorf("missing network: %v", err)
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
	_, _ = w.Write([]byte("bytes\n"))
	check(t, w.Close())
	check(t, b.CopyTo(ctx, id, "/home/box", bytes.NewReader(archive.Bytes())))
	check(t, b.StartContainer(ctx, id))
	b.ended(t, id)
	got, err := os.ReadFile(filepath.Join(outside, "file"))
	check(t, err)
	if string(got) != "bytes\n1000:1000 640\n" {
		t.Errorf("got %q", got)
	}

	err = b.CopyTo(ctx, id, "/no/such/dir", bytes.NewReader(archive.Bytes()))
	if !errors.Is(err, &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonCopyFailed}) {
		t.Errorf("missing directory: %v", err)
	}
	if err := b.CopyTo(ctx, "boxfleet-absent", "/", bytes.NewReader(archive.Bytes())); !docker.IsNotFound(err) {
		t.Errorf("missing container: %v", err)
	}
	broken := errors.New("the source broke")
	if err := b.CopyTo(ctx, id, "/home/box", iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("broken source: %v", err)
	}
}

// A count would give each container the same GPUs, so the request names them.
func TestGPUsAreRequestedByName(t *testing.T) {
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
		t.Fatalf("requested %+v", asked.HostConfig.DeviceRequests)
	}
	if d := asked.HostConfig.DeviceRequests[0]; !slices.Equal(d.DeviceIDs, spec.GPUs) || d.Count != 0 ||
		!slices.Equal(d.Capabilities[0], []string{"gpu"}) {
		t.Errorf("requested %+v", d)
	}
}
