package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// These tests check the requirements on the queue and on hosts. Each test name starts with the code of its requirement.

// impatient gives the watchdog short deadlines.
var impatient = coordinator.Timing{Scan: 200 * time.Millisecond, Abandon: time.Second, Overdue: time.Second}

// ends waits until a sandbox has failed, and returns the sandbox's error.
func ends(ctx context.Context, f *fleet.Fleet, id string) *protocol.Error {
	f.TB.Helper()
	var info protocol.Sandbox
	f.Eventually(15*time.Second, "sandbox "+id+" has failed", func() error {
		s, err := f.Client.Get(ctx, id)
		if err != nil {
			return err
		}
		if info = s.Info(); info.State != protocol.StateFailed {
			return fmt.Errorf("it is %s", info.State)
		}
		return nil
	})
	return info.Error
}

func TestQ1_AReservationWithoutAHistoryIsEnded(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, Timing: impatient})
	ctx := f.Context(time.Minute)
	if _, err := f.Conn.ReserveSandbox(ctx, "default", "ghost",
		protocol.Reservation{Request: "gone", Fingerprint: "x", Time: time.Now()}); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a reservation without a history", ends(ctx, f, "ghost"), protocol.Internal,
		protocol.ReasonAbandoned, "")
	_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("ghost"))
	wantError(t, "its id", err, protocol.AlreadyExists, "", "")
	if err := f.Client.Sandbox("ghost").Delete(ctx); err != nil {
		t.Errorf("delete it: %v", err)
	}
	f.Judge()
}

func TestQ1_ASandboxThatNoWorkerStartsIsEnded(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, Timing: impatient})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.QueueTimeout = protocol.Duration(time.Second)
	if _, err := f.Client.Create(ctx, spec, sdk.WithID("queued"), sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a sandbox that no host takes", ends(ctx, f, "queued"), protocol.DeadlineExceeded,
		protocol.ReasonQueueTimeout, "")

	w := f.Worker("w1", fleet.Role{})
	// The worker hangs just after it has received a sandbox and sent a heartbeat.
	f.Eventually(5*time.Second, "the host is ready", func() error {
		hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
		if err == nil && (len(hosts) != 1 || hosts[0].State != protocol.HostReady) {
			err = fmt.Errorf("%+v", hosts)
		}
		return err
	})
	w.Pause()
	spec = f.Spec()
	spec.CreateTimeout = protocol.Duration(500 * time.Millisecond)
	if _, err := f.Client.Create(ctx, spec, sdk.WithID("hung"), sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a sandbox that its worker never started on", ends(ctx, f, "hung"), protocol.DeadlineExceeded,
		protocol.ReasonCreateTimeout, "")
	if n := count(history(ctx, t, f.Client, "hung"), protocol.SandboxAssigned); n != 1 {
		t.Errorf("the sandbox was assigned %d times", n)
	}
	w.Continue()
	mustExec(ctx, t, f.Create("next"), script("true"))
	if err := f.Client.Sandbox("next").Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
	f.Judge()
}

func TestQ1_AnExecWhoseWorkerIsGoneIsEnded(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, Timing: impatient})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	s := f.Create("q1")
	spec := script("echo x >> /tmp/runs; echo started; sleep 5; echo ended >> /tmp/runs")
	spec.Timeout, spec.Grace = protocol.Duration(3*time.Second), protocol.Duration(100*time.Millisecond)
	x, err := s.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	for range x.Output(ctx, sdk.WithFollow(true)) {
		break // the exec is running now
	}
	w.Kill()
	begin := time.Now()
	r, err := x.Wait(ctx)
	if r == nil || r.State != protocol.ExecStateFailed || r.ExitCode != nil || r.Reason == "" {
		t.Errorf("an exec long after its timeout: %v, %+v", err, r)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("it ended after %s; its limits add up to 4.1 s", took)
	}
	w.Restart()                                        // this worker finds that the exec has ended, and appends nothing
	time.Sleep(time.Until(begin.Add(6 * time.Second))) // no second line may be written until then
	if got := mustExec(ctx, t, s, script("cat /tmp/runs")); got != "x\n" {
		t.Errorf("the supervisor enforces the timeout without the worker, so the file should have one line: %q", got)
	}
	f.Judge()
}

func TestQ10_RemovalIsTriedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	proxy, host := dockertest.StartProxy(t, dockertest.Socket(t))
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: host, Reconcile: time.Second})
	ctx := f.Context(time.Minute)
	s := f.Create("q10")
	var refused atomic.Int32
	broken := atomic.Bool{}
	broken.Store(true)
	proxy.Inject(func(r *http.Request) dockertest.Fault {
		if r.Method == http.MethodDelete && broken.Load() {
			refused.Add(1)
			return dockertest.Fault{Status: 500, Message: "driver failed to remove root filesystem"}
		}
		return dockertest.Fault{}
	})
	if err := s.Delete(ctx, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	f.Eventually(15*time.Second, "the removal was tried three times", func() error {
		if n := refused.Load(); n < 3 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	// The sandbox shows when its delete began, and is not reported as deleted.
	if err := s.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	asked := find(t, history(ctx, t, f.Client, "q10"), protocol.SandboxDeleteRequested)
	if i := s.Info(); i.State != protocol.StateDeleting || !i.StateChangedAt.Equal(asked.Time) {
		t.Errorf("while the engine refuses it is %s since %s", i.State, i.StateChangedAt)
	}
	if why, err := s.Explain(ctx); err != nil || why.Waiting == "" {
		t.Errorf("the sandbox does not report what it waits for: %v", err)
	}
	broken.Store(false)
	if err := s.WaitDeleted(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
	f.Judge()
}

func TestQ10_OrphansAreRemovedAndNothingElse(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Reconcile: time.Second})
	ctx := f.Context(time.Minute)
	kept := f.Create("kept")
	for _, id := range []string{"gone", "network"} {
		if err := f.Create(id).Delete(ctx); err != nil {
			t.Fatal(err)
		}
	}
	deployment := f.Conn.Deployment()
	docker := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("docker", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("docker %q: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	labels := func(deployment, sandbox string) []string {
		return []string{"--label", "boxfleet.deployment=" + deployment, "--label", "boxfleet.tenant=default", "--label",
			"boxfleet.sandbox=" + sandbox, "--label", "boxfleet.generation=1"}
	}
	name := func(deployment, sandbox string) string { return "boxfleet." + deployment + ".default." + sandbox }
	foreign := "other" + deployment // the name of another deployment
	make := func(deployment, sandbox string) {
		docker(slices.Concat([]string{"network", "create"}, labels(deployment, sandbox),
			[]string{name(deployment, sandbox)})...)
		docker(slices.Concat([]string{"create", "--name", name(deployment, sandbox)}, labels(deployment, sandbox),
			[]string{fleet.Image, "true"})...)
	}
	make(foreign, "gone") // these objects belong to another deployment
	t.Cleanup(func() { docker("rm", name(foreign, "gone")); docker("network", "rm", name(foreign, "gone")) })
	// These objects belong to a sandbox that is deleted according to the log.
	make(deployment, "gone")
	// This network is the only object of its sandbox.
	docker(slices.Concat([]string{"network", "create"}, labels(deployment, "network"),
		[]string{name(deployment, "network")})...)
	// These objects belong to a sandbox that is not in the log.
	make(deployment, "unheard")
	// An image may carry all labels of a deleted or a living sandbox. If a user creates containers from such an image,
	// the containers belong to the user.
	hostile := "hostile-" + strings.ToLower(deployment) + ":1"
	of := docker("create", fleet.Image)
	commit := []string{"commit"}
	for _, l := range append(labels(deployment, "gone"), "--label", "boxfleet.role=primary", "--label",
		"boxfleet.gpus=0", "--label", "boxfleet.directory=/") {
		if l != "--label" {
			commit = append(commit, "--change", "LABEL "+l)
		}
	}
	docker(append(commit, of, hostile)...)
	docker("rm", of)
	theirs := []string{"theirs-" + deployment, name(deployment, "gone") + ".theirs"}
	for _, n := range theirs {
		docker("create", "--name", n, hostile, "true")
	}
	defer func() { docker(append([]string{"rm"}, theirs...)...); docker("rmi", hostile) }()
	// A sandbox that is created from such an image keeps its own labels.
	spec := f.Spec()
	spec.Image = hostile
	labelled, err := f.Client.Create(ctx, spec, sdk.WithID("labelled"))
	if err != nil {
		t.Fatal(err)
	}
	mustExec(ctx, t, labelled, script("true"))
	lost := filepath.Join(filepath.Dir(f.Directories(w)[0]), "default.gone.1")
	if err := os.MkdirAll(filepath.Join(lost, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	docker("create", "--name", "marker-"+deployment, "--label", "boxfleet.deployment="+deployment, "--label",
		"boxfleet.tenant=default",
		// When the worker has removed this orphan, it has inspected everything that was created earlier.
		"--label", "boxfleet.sandbox=gone", "--label", "boxfleet.generation=1", fleet.Image, "true")
	f.Eventually(10*time.Second, "the orphans are gone", func() error {
		for _, o := range f.Objects("") {
			if strings.HasSuffix(o, "marker-"+deployment) || strings.HasSuffix(o, name(deployment, "gone")) ||
				strings.HasSuffix(o, name(deployment, "network")) {
				return errors.New("there is " + o)
			}
		}
		if _, err := os.Stat(lost); err == nil {
			return errors.New("there is " + lost)
		}
		return nil
	})
	mustExec(ctx, t, kept, script("true"))
	mustExec(ctx, t, labelled, script("true"))
	for _, n := range theirs {
		docker("inspect", n)
	}
	if got := docker("inspect", "--format",
		`{{index .Config.Labels "boxfleet.gpus"}}{{index .Config.Labels "boxfleet.sandbox"}}`, name(deployment,
			"labelled")); got != "labelled" {
		t.Errorf("the sandbox has the image's labels: %s", got)
	}
	if err := labelled.Delete(ctx); err != nil {
		t.Error(err)
	}
	if left := f.Objects(""); slices.Contains(left, "container "+name(deployment, "labelled")) {
		t.Errorf("the sandbox of that image is not removed: %v", left)
	}
	for _, n := range theirs {
		docker("inspect", n)
	}
	for _, n := range []string{name(foreign, "gone"), name(deployment, "unheard")} {
		docker("inspect", n)
		docker("network", "inspect", n)
	}
	docker("rm", name(deployment, "unheard")) // the test removes what Boxfleet must keep
	docker("network", "rm", name(deployment, "unheard"))
	f.Judge()
}

func TestQ9_ADryRunReportsAndRemovesNothing(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Reconcile: 300 * time.Millisecond, ReapDryRun: true})
	if err := f.Create("gone").Delete(f.Context(time.Minute)); err != nil {
		t.Fatal(err)
	}
	deployment := f.Conn.Deployment()
	name := "boxfleet." + deployment + ".default.gone"
	out, err := exec.Command("docker", "create", "--name", name, "--label", "boxfleet.deployment="+deployment,
		"--label", "boxfleet.tenant=default",
		"--label", "boxfleet.sandbox=gone", "--label", "boxfleet.generation=1", fleet.Image, "true").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.Eventually(10*time.Second, "the report", func() error {
		// Each of two inspections writes the report once.
		if strings.Count(w.Log(), "would remove what is left of the sandbox on this host") < 2 {
			return errors.New("it is not reported yet")
		}
		return nil
	})
	if left := f.Objects(""); len(left) != 1 {
		t.Fatalf("on the host: %q", left)
	}
	w.Stop()
	f.Worker("w1", fleet.Role{Reconcile: 300 * time.Millisecond})
	f.Eventually(10*time.Second, "the orphan is gone", func() error {
		if left := f.Objects(""); len(left) > 0 {
			return errors.New(left[0])
		}
		return nil
	})
	f.Judge()
}

func TestQ18_ARequestIsFoundAgainByItsID(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	client, err := sdk.Connect(ctx, f.Options(sdk.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	lost := make(chan error, 1)
	waiting, cancel := context.WithCancel(ctx)
	go func() {
		_, err := client.Create(waiting, f.Spec(), sdk.WithID("q18"), sdk.WithRequestID("r-q18"))
		lost <- err
	}()
	f.Eventually(10*time.Second, "the request is accepted", func() error {
		_, err := f.Client.Get(ctx, "q18")
		return err
	})
	cancel()
	client.Close()
	if err := <-lost; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that disconnected: %v", err)
	}
	f.Worker("w1", fleet.Role{})

	client, err = sdk.Connect(ctx, f.Options(sdk.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := client.Get(ctx, "q18")
	if err != nil || s.Info().Request != "r-q18" {
		t.Fatalf("the sandbox by its id: %v", err)
	}
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	again, err := client.Create(ctx, f.Spec(), sdk.WithID("q18"), sdk.WithRequestID("r-q18"))
	if err != nil || again.Info().Container != s.Info().Container {
		t.Errorf("the same request: %v", err)
	}
	// Now the client leaves an exec early. When the client returns, the exec's result is available.
	gone, leave := context.WithCancel(ctx)
	spec := script("echo x >> /tmp/runs; cat /tmp/runs; while ! [ -e /tmp/go ]; do sleep 0.05; done; exit 5")
	go func() {
		f.Eventually(10*time.Second, "the exec is accepted", func() error { _, err := s.GetExec(ctx, "x"); return err })
		leave()
	}()
	if _, err := s.Exec(gone, spec, sdk.WithID("x"), sdk.WithRequestID("r-x")); !errors.Is(err, context.Canceled) {
		t.Errorf("the exec of a client that disconnected: %v", err)
	}
	mustExec(ctx, t, s, script("touch /tmp/go"))
	r, err := s.Exec(ctx, spec, sdk.WithID("x"), sdk.WithRequestID("r-x"))
	if err != nil || code(r) != "5" || string(r.Stdout) != "x\n" {
		t.Errorf("the same exec: %v, exit code %s, %q", err, code(r), r.Stdout)
	}
	// If no coordinator answers, a client without a deadline gives up by itself.
	alone := fleet.Start(t, fleet.Options{Coordinators: -1})
	silent, err := sdk.Connect(ctx, alone.Options(sdk.Options{RequestTimeout: 200 * time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begin := time.Now()
	_, err = silent.Create(context.Background(), f.Spec(), sdk.WithWait(false))
	if err == nil || time.Since(begin) > 10*time.Second {
		t.Errorf("without a coordinator and without a deadline: %v after %s", err, time.Since(begin))
	}
	f.Judge()
}

// In one pass of the scheduler, each placed sandbox takes room on its host, also for its services, before the next
// sandbox is placed.
func TestSandboxesPlacedAtOnceFitTheirHost(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		t.Fatal(err)
	}
	half := protocol.Bytes(machine.Totalram*uint64(machine.Unit)) * 6 / 10
	for _, id := range []string{"one", "two"} {
		spec := f.Spec()
		spec.OptionalServices = protocol.Services{"large": {Image: fleet.Image, Command: []string{"sleep", "1000"},
			Memory: half}}
		if _, err := f.Client.Create(ctx, spec, sdk.WithID(id), sdk.WithWait(false)); err != nil {
			t.Fatal(err)
		}
	}
	f.Worker("w1", fleet.Role{})
	one, two := f.Client.Sandbox("one"), f.Client.Sandbox("two")
	if err := one.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if info, err := f.Client.Get(ctx, "two"); err != nil || info.Info().Assigned {
		t.Fatalf("the second sandbox is on the host, too (%v)", err)
	}
	if err := one.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if err := two.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := two.Delete(ctx); err != nil {
		t.Fatal(err)
	}
}
