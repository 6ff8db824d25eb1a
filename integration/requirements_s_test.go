package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// These tests guard against mistakes of the predecessor, which had a single host. Each test name starts with the code
// of its requirement.

func TestS1_ADeleteDuringACreateWins(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	// Each function in the list moments waits during the create of a sandbox: for an event, or for some time.
	event := func(n int) func(string) {
		return func(id string) {
			for e, err := range f.Client.Sandbox(id).Events(ctx, sdk.WithFollow(true)) {
				if err != nil || int(e.Sequence) >= n {
					return
				}
			}
		}
	}
	delay := func(d time.Duration) func(string) {
		return func(string) {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		}
	}
	moments := []func(string){}
	for n := 1; n <= 7; n++ { // accepted, assigned, four phases, ready
		moments = append(moments, event(n))
	}
	for d := time.Duration(0); d < 400*time.Millisecond; d += 40 * time.Millisecond {
		moments = append(moments, delay(d))
	}
	during := 0
	for i, moment := range moments {
		id := fmt.Sprintf("s1-%d", i)
		s, err := f.Client.Create(ctx, f.Spec(), sdk.WithID(id), sdk.WithWait(false))
		if err != nil {
			t.Fatal(err)
		}
		moment(id)
		if err := s.Delete(ctx); err != nil {
			t.Fatalf("moment %d: %v", i, err)
		}
		events := history(ctx, t, f.Client, id)
		asked := slices.Index(kinds(events), protocol.SandboxDeleteRequested)
		if at := slices.Index(kinds(events), protocol.SandboxReady); at > asked || asked < 0 ||
			events[len(events)-1].Kind != protocol.SandboxDeleted {
			t.Errorf("moment %d: %v", i, kinds(events))
		} else if at < 0 {
			during++
		}
	}
	if during < 6 {
		t.Errorf("only %d of %d deletes arrived during the create", during, len(moments))
	}
	becomesEmpty(f, w)
	f.Judge()
}

func TestS7_NamesOnTheEngineCannotCollide(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	names := [][2]string{{"default", "abcd"}, {"default", "abcd-y"}, {"default", "abcd_y"}, {"default", "ABCD"},
		{"t", "a-b"}, {"t-a", "b"}, {"t", "abcd"}}
	var boxes []*sdk.Sandbox
	for _, n := range names {
		c, err := sdk.Connect(ctx, f.Options(sdk.Options{Tenant: n[0]}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := c.Create(ctx, f.Spec(), sdk.WithID(n[1]))
		if err != nil {
			t.Fatalf("%v: %v", n, err)
		}
		mustExec(ctx, t, s, script("echo "+n[0]+"/"+n[1]+" > /tmp/name"))
		boxes = append(boxes, s)
	}
	if objects := f.Objects(""); len(objects) != 2*len(names) {
		t.Errorf("%d sandboxes have %d containers and networks: %q", len(names), len(objects), objects)
	}
	if dirs := f.Directories(w); len(dirs) != len(names) {
		t.Errorf("%d sandboxes have the directories %q", len(names), dirs)
	}
	if err := boxes[0].Delete(ctx); err != nil {
		t.Fatal(err)
	}
	for i, s := range boxes[1:] {
		if got, want := mustExec(ctx, t, s, script("cat /tmp/name")), strings.Join(names[i+1][:],
			"/")+"\n"; got != want {
			t.Errorf("%q has the files of %q", want, got)
		}
	}
	f.Judge()
}

func TestS8_StopsAndDeletesComeInOrder(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	patient := f.Spec()
	patient.Grace = protocol.Duration(5 * time.Second)
	s, err := f.Client.Create(ctx, patient, sdk.WithID("s8"))
	if err != nil {
		t.Fatal(err)
	}
	// This command ignores TERM, so stopping it takes the whole grace period.
	deaf := script("trap '' TERM; echo deaf; while :; do sleep 100; done")
	start := func() *sdk.Exec {
		x, err := s.Start(ctx, deaf)
		if err != nil {
			t.Fatal(err)
		}
		for range x.Output(ctx, sdk.WithFollow(true)) {
			return x
		}
		t.Fatal("no output")
		return nil
	}
	x := start()

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := s.Stop(ctx); err != nil {
				t.Errorf("one of several stops: %v", err)
			}
		})
	}
	f.Eventually(5*time.Second, "the sandbox is stopping", func() error {
		now, err := f.Client.Get(ctx, "s8")
		if err == nil && now.Info().Desired != protocol.StateStopped {
			err = errors.New("its stop is not requested yet")
		}
		return err
	})
	_, err = s.Exec(ctx, script("true"), sdk.WithID("late"))
	wantError(t, "an exec while stopping", err, protocol.FailedPrecondition, protocol.ReasonSandboxStopping, "")
	wg.Wait()
	events := history(ctx, t, f.Client, "s8")
	if count(events, protocol.SandboxStopRequested) != 1 || count(events, protocol.SandboxStopped) != 1 ||
		events[len(events)-1].Kind != protocol.SandboxStopped {
		t.Errorf("four stops: %v", kinds(events))
	}
	r, err := x.Wait(ctx)
	if r == nil || r.State != protocol.ExecStateCancelled || r.Reason != protocol.ReasonSandboxStopped ||
		code(r) != "137" {
		t.Errorf("the stopped exec: %v, %+v", err, r)
	}
	_, err = s.Exec(ctx, script("true"), sdk.WithID("late"))
	wantError(t, "an exec in a stopped sandbox", err, protocol.FailedPrecondition, "", "")

	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	start()
	wg.Go(func() {
		// The sandbox may be deleted before it is stopped. The wait for the stop then ends with a reason.
		if err := s.Stop(ctx); err != nil && protocol.AsError(err).Code != protocol.FailedPrecondition {
			t.Errorf("a stop during a delete: %v", err)
		}
	})
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	events = history(ctx, t, f.Client, "s8")
	if events[len(events)-1].Kind != protocol.SandboxDeleted || count(events, protocol.SandboxDeleteRequested) != 1 {
		t.Errorf("stop and delete together: %v", kinds(events))
	}
	if left := f.Objects(""); len(left) > 0 {
		t.Errorf("left on the engine: %q", left)
	}
	f.Judge()
}

func TestS9_IdleStopIsPunctualAndResumeResetsIt(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	f := fleet.Start(t, fleet.Options{Timing: coordinator.Timing{Scan: 200 * time.Millisecond}})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.IdleTTL = protocol.Duration(ttl)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s9"))
	if err != nil {
		t.Fatal(err)
	}
	// An exec that cannot run also counts as activity. The test requests it well before the idle time ends, and more
	// than one scan after the idle time began. The time of the stop then shows whether the exec started the idle time
	// again.
	f.Eventually(5*time.Second, "some idle time passes", func() error {
		if idle := time.Since(s.Info().ActiveAt); idle < ttl/4 {
			return fmt.Errorf("%s", idle)
		}
		return nil
	})
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, User: "nobody-has-this-name"})
	if r == nil || r.State != protocol.ExecStateFailed {
		t.Fatalf("an exec of an unknown user: %v", err)
	}
	punctual := func(since time.Time) {
		t.Helper()
		if err := s.WaitStopped(ctx); err != nil {
			t.Fatal(err)
		}
		events := history(ctx, t, f.Client, "s9")
		var asked protocol.Event
		for _, e := range events {
			if e.Kind == protocol.SandboxStopRequested {
				asked = e
			}
		}
		if idle := asked.Time.Sub(since); asked.Reason != protocol.ReasonIdleTTL || idle < ttl-100*time.Millisecond ||
			idle > ttl+5*time.Second {
			t.Errorf("stopped with reason %q after %s of idling, want %s to %s", asked.Reason, idle, ttl,
				ttl+5*time.Second)
		}
	}
	punctual(r.Ended)
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	punctual(s.Info().ReadyAt)
	f.Judge()
}

func TestS12_ForbiddenPathsCannotBeMounted(t *testing.T) {
	t.Parallel()
	allowed := t.TempDir()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	link := func(name, to string) string {
		path := filepath.Join(allowed, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := syscall.Mkfifo(filepath.Join(allowed, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The operator allows more than is safe: the directory of the Engine's socket and the worker's state directory.
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{allowed, "/run", "/var/run", f.Dir}})
	for what, source := range map[string]string{
		"the socket":                        "/var/run/docker.sock",
		"the socket by its real path":       "/run/docker.sock",
		"the socket by a link":              link("socket", "/var/run/docker.sock"),
		"the socket's directory":            "/var/run",
		"the socket's directory by a link":  link("run", "/run"),
		"the state directory":               w.Role.StateDir,
		"a directory of the state":          filepath.Join(w.Role.StateDir, f.Conn.Deployment()),
		"the parent of the state directory": f.Dir,
		"the state directory by a link":     link("state", w.Role.StateDir),
		"the root by a link":                link("root", "/"),
		"a link out of the allow-list":      link("out", "/etc"),
		"below a link out":                  filepath.Join(allowed, "out", "ssl"),
		"a path out with ..":                allowed + "/../../etc",
		"a directory that is not allowed":   "/etc",
		"a name with an allowed prefix":     allowed + "x",
		"neither a file nor a directory":    filepath.Join(allowed, "fifo"),
		"a link through another link":       link("twice", filepath.Join(allowed, "out")),
	} {
		spec := f.Spec()
		spec.Mounts = []protocol.Mount{{Source: "/" + strings.Trim(allowed, "/"), Target: "/fine"},
			{Source: source, Target: "/m"}}
		_, err := f.Client.Create(ctx, spec)
		wantError(t, what, err, protocol.PermissionDenied, protocol.ReasonMountDenied, "spec.mounts[1].source")
	}
	for _, root := range []string{"/", "//", "/.", "/etc/.."} {
		spec := f.Spec()
		spec.Mounts = []protocol.Mount{{Source: root, Target: "/m"}}
		_, err := f.Client.Create(ctx, spec)
		wantError(t, root, err, protocol.InvalidArgument, "", "spec.mounts[0].source")
	}
	spec := f.Spec()
	spec.Mounts = []protocol.Mount{{Source: filepath.Join(allowed, "missing"), Target: "/m"}}
	_, err := f.Client.Create(ctx, spec)
	wantError(t, "a missing source", err, protocol.InvalidArgument, "", "spec.mounts[0].source")
	becomesEmpty(f, w)

	// An operator cannot allow the whole host by mistake.
	w.Stop()
	if err := os.Symlink("/", filepath.Join(f.Dir, "all")); err != nil {
		t.Fatal(err)
	}
	for _, all := range []string{"/", filepath.Join(f.Dir, "all")} {
		p := f.Worker("w2", fleet.Role{AllowMounts: []string{all}, NoWait: true})
		if err := p.AwaitExit(10 * time.Second); err == nil ||
			!strings.Contains(p.Log()+err.Error(), "mounts.allow[0]") {
			t.Errorf("a worker that allows %s: %v", all, err)
		}
	}
}

func TestS17_FailedMeansThatTheCommandCouldNotRun(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("s17")
	for _, text := range []string{"exit 1", "exit 127", "false"} {
		r, err := s.Exec(ctx, script(text))
		if err != nil || r.State != protocol.ExecStateFinished || r.Error != nil {
			t.Errorf("%s: %v, %s", text, err, r.State)
		}
	}
	for what, c := range map[string]struct {
		spec   protocol.ExecSpec
		reason string
		field  string
	}{
		"unknown user": {protocol.ExecSpec{Command: []string{"true"}, User: "nobody-has-this-name"},
			protocol.ReasonUserUnknown, "spec.user"},
		"missing directory": {protocol.ExecSpec{Command: []string{"true"}, Cwd: "/not/there"},
			protocol.ReasonCwdInvalid, "spec.cwd"},
	} {
		r, err := s.Exec(ctx, c.spec)
		if r == nil || r.State != protocol.ExecStateFailed || r.ExitCode != nil {
			t.Errorf("%s: %+v, want failed without an exit code", what, r)
		}
		wantError(t, what, err, protocol.FailedPrecondition, c.reason, c.field)
	}
	mustExec(ctx, t, s, script("true"))
}

func TestS20_TheSDKLinksNeitherServerNorEngine(t *testing.T) {
	t.Parallel()
	deps, err := exec.Command("go", "list", "-deps", "github.com/boxfleet/boxfleet/sdk").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, deps)
	}
	for _, foreign := range []string{"github.com/docker/", "github.com/nats-io/nats-server", "boxfleet/coordinator",
		"boxfleet/worker", "boxfleet/supervisor"} {
		for dep := range strings.Lines(string(deps)) {
			if strings.Contains(dep, foreign) {
				t.Errorf("the SDK links %s", dep)
			}
		}
	}

	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("s20")
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, create := f.Client.Create(ctx, protocol.SandboxSpec{})
	_, get := f.Client.Get(ctx, "never-was")
	_, badID := f.Client.Get(ctx, "a.b")
	_, run := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, User: "nobody-has-this-name"})
	_, ended := s.Exec(over, script("true"))
	_, page := f.Client.ListPage(ctx, sdk.WithPage("nonsense"))
	_, labels := f.Client.DeleteByLabels(ctx, nil)
	_, option := s.Exec(ctx, script("true"), sdk.WithCollect(-1))
	_, copied := f.Client.Upload(ctx, "/not/there", "/x")
	_, nobody := sdk.Connect(over, sdk.Options{URL: "nats://127.0.0.1:1"})
	_, exit := s.GetExec(ctx, "never-was")
	for what, err := range map[string]error{
		"create": create, "get": get, "bad id": badID, "exec": run, "ended context": ended, "page": page, "labels": labels,
		"option": option, "copy": copied, "connect": nobody, "get exec": exit, "cancel": s.ExecByID("never-was").Cancel(ctx),
	} {
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code == "" || e.Code == protocol.Internal {
			t.Errorf("%s: %v (%T) is not a *protocol.Error with a code", what, err, err)
		}
	}
	if !errors.Is(ended, context.Canceled) {
		t.Errorf("the error of an ended context is %v", ended)
	}
}

func TestS23_APrimaryCommandThatExitsAgainAndAgainFails(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	const window = 2 * time.Second
	w := f.Worker("w1", fleet.Role{CrashWindow: window, CrashGuard: time.Second})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Command = []string{"sh", "-c", "sleep 0.7; false"} // if the command ended at once, the create would fail
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s23"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	steady := f.Spec()
	steady.Command = []string{"sleep", "1000"}
	other, err := f.Client.Create(ctx, steady, sdk.WithID("steady"))
	if err != nil {
		t.Fatal(err)
	}
	err = s.WaitStopped(ctx)
	wantError(t, "a primary command that exits shortly after its start", err, protocol.FailedPrecondition,
		protocol.ReasonCrashLoop, "")
	events := history(ctx, t, f.Client, "s23")
	failed, ready := find(t, events, protocol.SandboxFailed), find(t, events, protocol.SandboxReady)
	// The crash window begins with the first exit of the command, which may come before the sandbox is ready.
	start := slices.IndexFunc(events,
		func(e protocol.Event) bool { return e.Kind == protocol.SandboxPreparing && e.Details.Phase == "start" })
	if start < 0 {
		t.Fatalf("no start event in %v", kinds(events))
	}
	if after := failed.Time.Sub(events[start].Time); after < window {
		t.Errorf("the sandbox failed %s after its start; the window is %s", after, window)
	}
	if after := failed.Time.Sub(ready.Time); after > window+4*time.Second {
		t.Errorf("the sandbox failed %s after it was ready; the window is %s", after, window)
	}
	mustExec(ctx, t, other, script("true"))
	for _, s := range []*sdk.Sandbox{s, other} {
		if err := s.Delete(ctx); err != nil {
			t.Fatal(err)
		}
	}
	becomesEmpty(f, w)
	f.Judge()
}

func TestS24_AnInvalidCreateIsRefusedBeforeTheIDIsTaken(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, Timing: coordinator.Timing{Scan: 200 * time.Millisecond}})
	allowed := t.TempDir()
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{allowed}})
	ctx := f.Context(time.Minute)
	// Use the raw layer: the SDK itself would refuse the spec.
	bad := f.Spec()
	bad.CPU = -1
	_, err := f.Client.Raw().Submit(ctx,
		sdk.Request{Verb: protocol.VerbCreate, Sandbox: "s24", Payload: protocol.Request{Sandbox: &bad}})
	wantError(t, "a bad spec at the coordinator", err, protocol.InvalidArgument, "", "spec.cpu")
	_, err = f.Client.Create(ctx, bad, sdk.WithID("s24"))
	wantError(t, "a bad spec at the SDK", err, protocol.InvalidArgument, "", "spec.cpu")
	if _, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("s24")); err != nil {
		t.Errorf("the id of a refused create cannot be used: %v", err)
	}

	placement := f.Spec()
	placement.Mounts = []protocol.Mount{{Source: "/opt", Target: "/m"}} // a mount that no host allows
	_, err = f.Client.Create(ctx, placement, sdk.WithID("placement"))
	wantError(t, "a create that placement refuses", err, protocol.PermissionDenied, protocol.ReasonMountDenied,
		"spec.mounts[0].source")
	if s, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("placement")); err != nil {
		t.Errorf("the id of a create that no host could take cannot be used: %v", err)
	} else if err := s.Delete(ctx); err != nil {
		t.Error(err)
	}
	if err := os.Symlink("/opt", filepath.Join(allowed, "link")); err != nil {
		t.Fatal(err)
	}
	placement.Mounts[0].Source = filepath.Join(allowed, "link") // only the worker can see where the link leads
	_, err = f.Client.Create(ctx, placement, sdk.WithID("host"))
	wantError(t, "a create that the worker refuses", err, protocol.PermissionDenied, protocol.ReasonMountDenied,
		"spec.mounts[0].source")
	if n := count(history(ctx, t, f.Client, "host"), protocol.SandboxAssigned); n != 1 {
		t.Errorf("the sandbox was assigned %d times", n)
	}
	if err := f.Client.Sandbox("s24").Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}
