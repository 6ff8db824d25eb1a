package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// TestAWorkersDefaultsHaveTheLowestPrecedence creates sandboxes on two hosts. The workers of the hosts have different
// defaults.
func TestAWorkersDefaultsHaveTheLowestPrecedence(t *testing.T) {
	t.Parallel()
	hosts := [2]*engines.Engine{engines.Default(t), engines.Start(t, "second")}
	engines.LoadImage(t, hosts[1], fleet.Image)
	// The lease is longer than the time after which a host is suspect. A heartbeat that is a little late then does not
	// move sandboxes.
	f := fleet.Start(t, fleet.Options{Coordinators: -1, Workers: -1, LockTTL: 9 * time.Second})
	f.Coordinator("c1", fleet.Role{Defaults: spec.Defaults{"default": {Env: map[string]string{"OVER": "tenant"},
		PIDs: 300}}})
	f.Connect()
	ctx := f.Context(3 * time.Minute)
	cache := t.TempDir()
	writeFile(t, filepath.Join(cache, "file"), "cached\n", 0o644, time.Now())
	below := func(name string, memory protocol.Bytes) *protocol.SandboxSpec {
		return &protocol.SandboxSpec{Env: map[string]string{"WHERE": name, "OVER": name}, Memory: memory, PIDs: 999,
			Grace: protocol.Duration(time.Second),
			Tmpfs: []protocol.Tmpfs{{Target: "/" + name, Size: 1 << 20}}}
	}
	first := below("w1", 48<<20)
	first.Mounts, first.User, first.Network = []protocol.Mount{{Source: cache,
		Target: "/cache"}}, "1000:7", &protocol.Network{Mode: protocol.NetworkNone}
	w1 := f.Worker("w1", fleet.Role{Engine: hosts[0].Host, WorkerDefaults: first, AllowMounts: []string{cache},
		Slots: 3, CrashAt: "after-container-create", CrashAfter: 4, Reconcile: time.Second})
	create := func(id string, s protocol.SandboxSpec) *sdk.Sandbox {
		t.Helper()
		s.Image = fleet.Image
		box, err := f.Client.Create(ctx, s, sdk.WithID(id))
		if err != nil {
			t.Fatal(err)
		}
		return box
	}
	const look = "echo $WHERE $OVER $(id -u); cat /sys/fs/cgroup/memory.max " +
		"/sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; cat /cache/file 2>/dev/null; ls -d /w[12]"

	f.Run(t, "fields that nothing else sets get the worker's defaults", func(t *testing.T) {
		box := create("silent", protocol.SandboxSpec{})
		if got, want := mustPrint(t, f, box, look), fmt.Sprintf("w1 tenant 1000\n%d\ncached\n/w1",
			48<<20); got != want {
			t.Errorf("in the sandbox: want %q, got %q", want, got)
		}
		i := box.Info()
		if s := i.Spec; s.Memory != 48<<20 || s.PIDs != 300 || s.Env["WHERE"] != "w1" || s.Env["OVER"] != "tenant" ||
			s.User != "1000:7" || len(s.Mounts) != 1 ||
			s.Network.Mode != protocol.NetworkNone || s.CPU != protocol.DefaultCPU {
			t.Errorf("read back: %+v", s)
		}
		if a := i.Accepted; a == nil || a.Memory != protocol.DefaultMemory || a.Env["WHERE"] != "" || a.PIDs != 300 ||
			len(a.Mounts) != 0 {
			t.Errorf("accepted: %+v", a)
		}
		if err := box.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		if err := box.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		if s := box.Info().Spec; s.Memory != 48<<20 || mustPrint(t, f, box, "echo $WHERE") != "w1" {
			t.Errorf("resumed: %+v", s)
		}
	})
	f.Run(t, "the request overrides the defaults", func(t *testing.T) {
		own := protocol.SandboxSpec{Memory: 96 << 20, User: "0", Env: map[string]string{"WHERE": "request"},
			Network: &protocol.Network{Mode: protocol.NetworkInternet}}
		box := create("loud", own)
		if got, want := mustPrint(t, f, box, look), fmt.Sprintf("request tenant 0\n%d\ncached\n/w1",
			96<<20); got != want {
			t.Errorf("in the sandbox: want %q, got %q", want, got)
		}
		if s := box.Info().Spec; s.Memory != 96<<20 || s.Network.Mode != protocol.NetworkInternet {
			t.Errorf("read back: %+v", s)
		}
		own.Image = fleet.Image
		for range 2 { // the second create is a repeat; a lookup answers it
			if _, err := f.Client.Create(ctx, own, sdk.WithID("twice"), sdk.WithRequestID("same")); err != nil {
				t.Errorf("a repeated request does not find its sandbox: %v", err)
			}
		}
		own.Memory++
		if _, err := f.Client.Create(ctx, own, sdk.WithID("twice"),
			sdk.WithRequestID("same")); protocol.CodeOf(err) != protocol.AlreadyExists {
			t.Errorf("a repeated request for something else: %v", err)
		}
		if err := f.Client.Sandbox("twice").Delete(ctx); err != nil {
			t.Fatal(err)
		}
	})
	f.Run(t, "the command line shows and compares", func(t *testing.T) {
		c := &commandLine{t, buildCLI(t), f, t.TempDir()}
		text := "image: " + fleet.Image + "\nenv: {OWN: \"1\"}\ntmpfs: [/mine]\n"
		code, stdout, stderr := c.run(text, "spec", "render", "-f", "-", "--worker", "w1")
		for _, want := range []string{"memory: 48MiB # worker w1\n", "env: # worker w1, tenant default, stdin\n",
			"  OVER: tenant\n", "  WHERE: w1\n", "  OWN: \"1\"\n",
			"pids: 300 # tenant default\n", "cpu: 1 # built in\n", "user: \"1000:7\" # worker w1\n",
			"tmpfs: # worker w1, stdin\n"} {
			if code != 0 || !strings.Contains(stdout, want) {
				t.Errorf("want %q, got %d, %s\n%s", want, code, stderr, stdout)
			}
		}
		if code, _, stderr = c.run(text, "spec", "render", "-f", "-", "--worker", "w9"); code != 1 ||
			!strings.Contains(stderr, "there is no worker w9") {
			t.Errorf("an unknown worker: %d, %s", code, stderr)
		}
		if code, _, stderr = c.run(text, "spec", "render", "-f", "-", "--worker", "w1", "--offline"); code != 2 ||
			!strings.Contains(stderr, "--offline") {
			t.Errorf("offline: %d, %s", code, stderr)
		}
		if code, _, stderr = c.run(text+"mounts: [/x:/w1]\n", "spec", "render", "-f", "-", "--worker",
			"w1"); code != 2 || !strings.Contains(stderr, "with the defaults of worker w1") {
			t.Errorf("a spec that contradicts them: %d, %s", code, stderr)
		}
		if _, stdout, _ = c.run("", "sandbox", "events", "silent"); !strings.Contains(stdout,
			"to w1  with its defaults\n") {
			t.Errorf("events: %s", stdout)
		}
		code, stdout, _ = c.run("", "host", "list", "-o", "json")
		var listed []protocol.Host
		if err := json.Unmarshal([]byte(stdout), &listed); code != 0 || err != nil || len(listed) != 1 ||
			listed[0].Defaults == nil || listed[0].Defaults.Memory != 48<<20 {
			t.Errorf("host list: %d, %s", code, stdout)
		}
		if _, stdout, _ = c.run("", "host", "list"); !strings.Contains(stdout, "env.OVER,env.WHERE,user,memory,pids") {
			t.Errorf("host list: %s", stdout)
		}
		if code, stdout, stderr = c.run("id: silent\nimage: "+fleet.Image+"\n", "apply", "-f", "-"); code != 0 ||
			stdout != "silent unchanged\n" {
			t.Errorf("apply: %d, %s, %s", code, stdout, stderr)
		}
	})
	f.Run(t, "a sandbox that contradicts them goes to another host or waits", func(t *testing.T) {
		w2 := f.Worker("w2", fleet.Role{Engine: hosts[1].Host, WorkerDefaults: below("w2", 56<<20), Slots: 3})
		box := create("other", protocol.SandboxSpec{Tmpfs: []protocol.Tmpfs{{Target: "/w1"}}})
		if i := box.Info(); i.Worker != "w2" || i.Spec.Memory != 56<<20 {
			t.Errorf("the sandbox is on %s with %s", i.Worker, i.Spec.Memory)
		}
		if err := box.Delete(ctx); err != nil {
			t.Fatal(err)
		}
		w2.Stop()
		f.Eventually(20*time.Second, "w2 is listed as gone", func() error {
			hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
			if slices.ContainsFunc(hosts,
				func(h *protocol.Host) bool { return h.Worker == "w2" && h.State == protocol.HostReady }) {
				return errors.New("it is still ready")
			}
			return err
		})
		waits, err := f.Client.Create(ctx,
			protocol.SandboxSpec{Image: fleet.Image,
				Tmpfs: []protocol.Tmpfs{{Target: "/w1"}}}, sdk.WithID("waits"), sdk.WithWait(false))
		if err != nil {
			t.Fatal(err)
		}
		x, err := waits.Explain(ctx)
		if err != nil ||
			!strings.Contains(fmt.Sprint(x.Hosts),
				"w1 spec.tmpfs[1].target: with the defaults of worker w1: is the same target") {
			t.Errorf("explained: %+v, %v", x, err)
		}
		w2.Restart()
		onHost(ctx, t, waits, "w2")
		if err := waits.Delete(ctx); err != nil {
			t.Fatal(err)
		}
	})
	f.Run(t, "after the loss of a host the next host's defaults apply", func(t *testing.T) {
		for _, id := range []string{"fill1", "fill2"} { // makes w1 the emptier host, and leaves it a free slot
			onHost(ctx, t, create(id, protocol.SandboxSpec{Tmpfs: []protocol.Tmpfs{{Target: "/w1"}}}), "w2")
		}
		if err := f.Client.Sandbox("loud").Delete(ctx); err != nil {
			t.Fatal(err)
		}
		box, err := f.Client.Create(ctx, protocol.SandboxSpec{Image: fleet.Image}, sdk.WithID("moved"),
			sdk.WithWait(false))
		if err != nil {
			t.Fatal(err)
		}
		w1.AwaitKilled(30 * time.Second)
		if err := box.Refresh(ctx); err != nil || box.Info().Worker != "w1" || box.Info().Spec.Env["WHERE"] != "w1" {
			t.Errorf("on the first host: %+v, %v", box.Info(), err)
		}
		onHost(ctx, t, box, "w2")
		if got, want := mustPrint(t, f, box, look), fmt.Sprintf("w2 tenant 0\n%d\n/w2", 56<<20); got != want {
			t.Errorf("on the next host: want %q, got %q", want, got)
		}
		if i := box.Info(); i.Spec.User != "" || len(i.Spec.Mounts) != 0 || len(i.Spec.Tmpfs) != 1 ||
			i.Accepted == nil || i.Accepted.Memory != protocol.DefaultMemory {
			t.Errorf("read back: %+v", i)
		}
		w1.Restart()
	})
	f.Judge()
}

// TestAWorkerWithInvalidDefaultsDoesNotStart starts workers as an operator does, with files that contain defaults.
func TestAWorkerWithInvalidDefaultsDoesNotStart(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	w := f.Processes("worker")[0] // its credentials are for the host
	w.Stop()
	c := &commandLine{t, buildCLI(t), f, t.TempDir()}
	build := exec.Command("go", "build", "-o", filepath.Join(filepath.Dir(c.path), "boxfleet-supervisor"),
		"github.com/boxfleet/boxfleet/cmd/boxfleet-supervisor")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file, forbidden := filepath.Join(c.dir, "defaults.yaml"), t.TempDir()
	for text, want := range map[string]string{
		"memroy: 1g": "worker.defaults.memroy: " + file + ": line 1, column 1: is not a known field",
		"cpu: 1\nimage: x": "worker.defaults.image: " + file + ": line 2, column 8: cannot have a " +
			"worker default",
		"runtime: runsc":    "worker.defaults.runtime: the host's operator does not allow the runtime runsc",
		"profile: standard": "worker.defaults.profile: the host's operator allows only hardened",
		"mounts: ['" + forbidden + ":/m']": "worker.defaults.mounts[0].source: " + forbidden + " is not below the " +
			"host's allow-list",
		"tools: [git]":   "worker.defaults.tools[0]: the host does not offer git",
		"network: none":  "worker.defaults.network: the host's operator turned the firewall off",
		"memory: 900GiB": "worker.defaults.memory: is more than the",
	} {
		writeFile(t, file, text, 0o644, time.Now())
		code, stdout, stderr := c.runWith(f.WorkerFlags(w), "", "worker", "--name", "w1", "--defaults", file,
			"--firewall", "off")
		if code == 0 || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("%q: want %q, got %d, %q, %q", text, want, code, stdout, stderr)
		}
	}
	if code, _, stderr := c.runWith(f.WorkerFlags(w), "", "worker", "--name", "w1", "--defaults",
		file+"x"); code == 0 ||
		!strings.Contains(stderr, file+"x") {
		t.Errorf("a missing file: %d, %s", code, stderr)
	}
	w.Restart() // this worker removes everything that the failed workers left on the engine
}
