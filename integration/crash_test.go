package integration

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	workerdocker "github.com/boxfleet/boxfleet/worker/docker"
)

// adoptedWithin is how soon after its start a worker or a coordinator must have resumed all its work.
const adoptedWithin = 10 * time.Second

// doneWithin waits for a call that was in progress when a process was killed, and returns its error.
func doneWithin(t *testing.T, since time.Time, what string, done <-chan error) error {
	t.Helper()
	return doneIn(t, adoptedWithin, since, what, done)
}

func doneIn(t *testing.T, within time.Duration, since time.Time, what string, done <-chan error) (err error) {
	t.Helper()
	select {
	case err = <-done:
	case <-time.After(within - time.Since(since)):
		select {
		case err = <-done: // after a pause of the test process, both channels can be ready
		default:
			t.Fatalf("%s: not within %s of the restart", what, within)
		}
	}
	t.Logf("%s: done %s after the restart", what, time.Since(since).Round(time.Millisecond))
	return err
}

// begin starts a call of the SDK in the background.
func begin(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}

// killAll kills the processes of a role that a subtest has not ended. A failed subtest then does not affect the next
// subtest.
func killAll(f *fleet.Fleet, role string) {
	for _, p := range f.Processes(role) {
		p.Kill()
	}
}

// nothingLeft fails the test if anything of the deleted sandboxes is left on the engine or on the worker's disk.
func nothingLeft(t *testing.T, f *fleet.Fleet, w *fleet.Process) {
	t.Helper()
	if left := f.Objects(w.Role.Engine); len(left) > 0 {
		t.Errorf("left on the engine: %q", left)
	}
	if left := f.Directories(w); len(left) > 0 {
		t.Errorf("left on disk: %q", left)
	}
}

func exitsWith(t *testing.T, r *sdk.Result, code int) {
	t.Helper()
	if r.State != protocol.ExecStateFinished || r.ExitCode == nil || *r.ExitCode != code {
		t.Errorf("the exec is %s, reason %q, exit code %v; want finished, %d", r.State, r.Reason, r.ExitCode, code)
	}
}

// TestAWorkerKilledDuringACreateOrADelete kills a worker at each step of a create and at each step of a delete. The
// restarted worker brings the sandbox to its desired state and leaves nothing behind after the delete.
func TestAWorkerKilledDuringACreateOrADelete(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	deletes := []string{"before-container-remove", "after-container-remove", "after-network-remove", "before-deleted",
		"after-deleted"}
	for i, at := range []string{
		"before-phase-image", "after-phase-image", "before-phase-network", "before-network-create", "after-network-create",
		"after-phase-network", "before-phase-container", "before-container-create", "after-container-create",
		"after-phase-container", "before-phase-start", "after-phase-start", "before-container-start", "after-container-start",
		"before-hello", "after-hello", "before-ready", "after-ready",
	} {
		id, deleteAt := fmt.Sprintf("s%d", i), deletes[i%len(deletes)]
		f.Run(t, at, func(t *testing.T) {
			defer killAll(f, "worker")
			w := f.Worker("w1", fleet.Role{CrashAt: at})
			ctx := f.Context(time.Minute)
			created := begin(func() error {
				_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID(id))
				return err
			})
			w.AwaitKilled(20 * time.Second)
			restarted := time.Now()
			w = f.Worker("w1", fleet.Role{CrashAt: deleteAt})
			if err := doneWithin(t, restarted, "ready", created); err != nil {
				t.Fatalf("create: %v", err)
			}
			s := f.Client.Sandbox(id)
			result, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "hostname; exit 3"}})
			if err != nil {
				t.Fatal(err)
			}
			exitsWith(t, result, 3)
			if got := string(result.Stdout); got != id+"\n" {
				t.Errorf("the exec printed %q", got)
			}

			deleted := begin(func() error { return s.Delete(ctx) })
			w.AwaitKilled(20 * time.Second)
			restarted = time.Now()
			w = w.Restart()
			if err := doneWithin(t, restarted, "deleted, killed "+deleteAt, deleted); err != nil {
				t.Fatalf("delete: %v", err)
			}
			nothingLeft(t, f, w)
		})
	}
	f.Judge()
}

// counting returns a command that counts its runs in a file, prints the numbers up to n, one per line, and exits with
// 7. With pause, the command sleeps after half of the numbers.
func counting(id string, n int, pause bool) (command []string, output []byte) {
	middle := ""
	if pause {
		middle = "sleep 1;"
	}
	script := fmt.Sprintf("echo x >> /tmp/runs-%s; seq 1 %d; %s seq %d %d; exit 7", id, n/2, middle, n/2+1, n)
	var want bytes.Buffer
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&want, i)
	}
	return []string{"sh", "-c", script}, want.Bytes()
}

// ranOnce checks that the command of [counting] ran once.
func ranOnce(t *testing.T, f *fleet.Fleet, s *sdk.Sandbox, id string) {
	t.Helper()
	runs, err := s.Exec(f.Context(20*time.Second), protocol.ExecSpec{Command: []string{"cat", "/tmp/runs-" + id}})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(runs.Stdout), "x"); n != 1 {
		t.Errorf("the command ran %d times", n)
	}
}

// same fails the test if got differs from want. The failure shows the first difference.
func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	t.Errorf("%s: %d bytes instead of %d, the first difference is at %d: %.40q instead of %.40q", what, len(got),
		len(want), at, got[at:], want[at:])
}

// TestAWorkerKilledDuringAnExec kills a worker at each step of an exec. The exec runs once and ends with its real exit
// code and its complete output.
func TestAWorkerKilledDuringAnExec(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	s := f.Create("s")
	w.Kill()
	for i, k := range []struct {
		at    string
		after int
		lines int // 60,000 lines take several chunks; 10 lines fit into the event that ends the exec
		pause bool
	}{
		{"before-exec-started", 1, 10, false},
		{"after-exec-started", 1, 10, false},
		{"after-exec-start", 1, 10, false},
		{"after-exec-start", 1, 60_000, true},
		{"output", 1, 60_000, true},
		{"output", 2, 60_000, false},
		{"before-exec-end", 1, 10, false},
		{"before-exec-end", 1, 60_000, false},
		{"after-exec-end", 1, 10, false},
	} {
		f.Run(t, fmt.Sprintf("%s-%d-%d", k.at, k.after, k.lines), func(t *testing.T) {
			defer killAll(f, "worker")
			id := fmt.Sprintf("x%d", i)
			command, want := counting(id, k.lines, k.pause)
			w := f.Worker("w1", fleet.Role{CrashAt: k.at, CrashAfter: k.after})
			ctx := f.Context(time.Minute)
			var result *sdk.Result
			ended := begin(func() (err error) {
				result, err = s.Exec(ctx, protocol.ExecSpec{Command: command}, sdk.WithID(id))
				return err
			})
			w.AwaitKilled(20 * time.Second)
			restarted := time.Now()
			w.Restart()
			if err := doneWithin(t, restarted, "ended", ended); err != nil {
				t.Fatal(err)
			}
			exitsWith(t, result, 7)
			same(t, "output", result.Stdout, want)
			ranOnce(t, f, s, id)
		})
	}
	f.Judge()
}

// TestAWorkerKilledDuringAStopOrAResume kills a worker at each step of a stop and at each step of a resume, while an
// exec runs.
func TestAWorkerKilledDuringAStopOrAResume(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	s := f.Create("s")
	w.Kill()
	stops := []string{"before-container-stop", "after-container-stop", "before-stopped", "after-stopped"}
	for i, resumeAt := range []string{
		"before-container-start", "after-container-start", "before-hello", "after-hello", "before-resumed", "after-resumed",
	} {
		stopAt := stops[i%len(stops)]
		f.Run(t, stopAt+"-"+resumeAt, func(t *testing.T) {
			defer killAll(f, "worker")
			ctx := f.Context(time.Minute)
			w := f.Worker("w1", fleet.Role{CrashAt: stopAt})
			x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}})
			if err != nil {
				t.Fatal(err)
			}
			stopped := begin(func() error { return s.Stop(ctx) })
			w.AwaitKilled(20 * time.Second)
			restarted := time.Now()
			w = f.Worker("w1", fleet.Role{CrashAt: resumeAt})
			if err := doneWithin(t, restarted, "stopped", stopped); err != nil {
				t.Fatalf("stop: %v", err)
			}
			result, err := x.Wait(ctx)
			if result == nil || result.State != protocol.ExecStateCancelled ||
				result.Reason != protocol.ReasonSandboxStopped {
				t.Errorf("the exec ended with %+v, %v", result, err)
			}
			resumed := begin(func() error { return s.Resume(ctx) })
			w.AwaitKilled(20 * time.Second)
			restarted = time.Now()
			w.Restart()
			if err := doneWithin(t, restarted, "resumed", resumed); err != nil {
				t.Fatalf("resume: %v", err)
			}
			if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}}); err != nil {
				t.Errorf("exec after the resume: %v", err)
			}
		})
	}
	f.Judge()
}

// killedCoordinator kills a coordinator at a step of the request that the function call sends, and restarts the
// coordinator. The pending call must return. A call that needs scheduling also waits until the killed coordinator's
// scheduler lock has expired.
func killedCoordinator(t *testing.T, f *fleet.Fleet, at string, call func() error) {
	t.Helper()
	c := f.Coordinator("c1", fleet.Role{CrashAt: at})
	done := begin(call)
	c.AwaitKilled(20 * time.Second)
	restarted := time.Now()
	c.Restart()
	if err := doneIn(t, jetstream.DefaultElectionTTL+adoptedWithin, restarted, at, done); err != nil {
		t.Errorf("killed %s: %v", at, err)
	}
}

// fleetWithoutCoordinator starts a fleet and kills its coordinator once the fleet is ready.
func fleetWithoutCoordinator(t *testing.T) (*fleet.Fleet, *fleet.Process) {
	f := fleet.Start(t, fleet.Options{Coordinators: -1})
	c := f.Coordinator("c1", fleet.Role{})
	f.Connect()
	w := f.Worker("w1", fleet.Role{})
	c.Kill()
	return f, w
}

// onlyOnce checks that the history has exactly one event of a kind.
func onlyOnce(t *testing.T, f *fleet.Fleet, id string, kind protocol.Kind) {
	t.Helper()
	n := 0
	kinds := f.History(id).Kinds()
	for _, k := range kinds {
		if k == kind {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%s has %d events %s: %v", id, n, kind, kinds)
	}
}

// TestACoordinatorKilledDuringACreate kills a coordinator before each of these steps: reserve, append, answer,
// acknowledge. The id belongs to exactly one sandbox, and the caller gets a handle for it.
func TestACoordinatorKilledDuringACreate(t *testing.T) {
	t.Parallel()
	f, w := fleetWithoutCoordinator(t)
	for i, at := range []string{"create-before-reserve", "create-before-append", "create-before-answer",
		"create-before-ack"} {
		f.Run(t, at, func(t *testing.T) {
			defer killAll(f, "coordinator")
			id, request := fmt.Sprintf("s%d", i), fmt.Sprintf("request-%d", i)
			ctx := f.Context(time.Minute)
			var s *sdk.Sandbox
			killedCoordinator(t, f, at, func() (err error) {
				s, err = f.Client.Create(ctx, f.Spec(), sdk.WithID(id), sdk.WithRequestID(request))
				return err
			})
			if s == nil {
				t.Fatal("no handle")
			}
			if info := s.Info(); info.ID != id || info.Request != request || info.State != protocol.StateReady {
				t.Errorf("the handle is %+v", info)
			}
			onlyOnce(t, f, id, protocol.SandboxAccepted)
			onlyOnce(t, f, id, protocol.SandboxAssigned)
			// Repeating the request returns the same sandbox. Another request with the same id is refused.
			again, err := f.Client.Create(ctx, f.Spec(), sdk.WithID(id), sdk.WithRequestID(request))
			if err != nil || again.Info().CreatedAt != s.Info().CreatedAt {
				t.Errorf("the same request again: %v", err)
			}
			if _, err := f.Client.Create(ctx, f.Spec(),
				sdk.WithID(id)); protocol.CodeOf(err) != protocol.AlreadyExists {
				t.Errorf("another request for the id: %v", err)
			}
			if err := s.Delete(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	f.Coordinator("c1", fleet.Role{})
	nothingLeft(t, f, w)
	f.Judge()
}

// TestACoordinatorKilledDuringAnExec kills a coordinator before each step of accepting an exec. The exec runs once.
func TestACoordinatorKilledDuringAnExec(t *testing.T) {
	t.Parallel()
	f, _ := fleetWithoutCoordinator(t)
	c := f.Coordinator("c1", fleet.Role{})
	s := f.Create("s")
	c.Kill()
	for i, at := range []string{"exec-before-append", "exec-before-answer", "exec-before-ack"} {
		f.Run(t, at, func(t *testing.T) {
			defer killAll(f, "coordinator")
			id := fmt.Sprintf("x%d", i)
			command, want := counting(id, 10, false)
			var result *sdk.Result
			killedCoordinator(t, f, at, func() (err error) {
				result, err = s.Exec(f.Context(time.Minute), protocol.ExecSpec{Command: command}, sdk.WithID(id))
				return err
			})
			if result == nil {
				t.Fatal("no result")
			}
			exitsWith(t, result, 7)
			same(t, "output", result.Stdout, want)
			ranOnce(t, f, s, id)
		})
	}
	f.Coordinator("c1", fleet.Role{})
	f.Judge()
}

// TestACoordinatorKilledDuringAChange lets a coordinator handle a cancel, a stop, a resume and a delete. During each of
// these requests it kills the coordinator once before the answer and once before the acknowledgement.
func TestACoordinatorKilledDuringAChange(t *testing.T) {
	t.Parallel()
	f, w := fleetWithoutCoordinator(t)
	for i, at := range []string{"before-answer", "before-ack"} {
		f.Run(t, at, func(t *testing.T) {
			defer killAll(f, "coordinator")
			ctx := f.Context(2 * time.Minute)
			c := f.Coordinator("c1", fleet.Role{})
			id := fmt.Sprintf("s%d", i)
			s := f.Create(id)
			x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}})
			if err != nil {
				t.Fatal(err)
			}
			f.Eventually(5*time.Second, "the exec runs", func() error {
				x, err := s.GetExec(ctx, x.ID())
				if err == nil && x.Info().State != protocol.ExecStateRunning {
					err = fmt.Errorf("it is %s", x.Info().State)
				}
				return err
			})
			c.Kill()
			for _, step := range []struct {
				verb string
				call func() error
				kind protocol.Kind
			}{
				{protocol.VerbCancel, func() error { return x.Cancel(ctx) }, protocol.ExecCancelRequested},
				{protocol.VerbStop, func() error { return s.Stop(ctx) }, protocol.SandboxStopRequested},
				{protocol.VerbResume, func() error { return s.Resume(ctx) }, protocol.SandboxResumeRequested},
				{protocol.VerbDelete, func() error { return s.Delete(ctx) }, protocol.SandboxDeleteRequested},
			} {
				killedCoordinator(t, f, step.verb+"-"+at, step.call)
				onlyOnce(t, f, id, step.kind)
				killAll(f, "coordinator")
			}
		})
	}
	f.Coordinator("c1", fleet.Role{})
	nothingLeft(t, f, w)
	f.Judge()
}

// TestANetworkThatTheEngineFinishesLateIsRemoved plays what happens when a worker is killed while the engine makes a
// sandbox's network: the engine does not list that network yet, the next worker makes another one with the same name,
// and then there are two.
func TestANetworkThatTheEngineFinishesLateIsRemoved(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	w := f.Worker("w1", fleet.Role{CrashAt: "before-network-create"})
	var s *sdk.Sandbox
	created := begin(func() (err error) {
		s, err = f.Client.Create(ctx, f.Spec(), sdk.WithID("s"))
		return err
	})
	w.AwaitKilled(20 * time.Second)
	w = f.Worker("w1", fleet.Role{PauseAt: "after-network-create"})
	w.AwaitPaused(20 * time.Second)
	name := workerdocker.ObjectName(f.Conn.Deployment(), protocol.SandboxKey{Tenant: protocol.DefaultTenant, ID: "s"})
	if err := engines.Default(t).SecondNetwork(ctx, name, "10.199.255.240/28", "bxf-0ac7fff0"); err != nil {
		t.Fatal(err)
	}
	w.Continue()
	if err := doneWithin(t, time.Now(), "ready", created); err != nil {
		t.Fatalf("create: %v", err)
	}
	if r, err := s.Exec(ctx, script("exit 3")); err != nil {
		t.Fatal(err)
	} else {
		exitsWith(t, r, 3)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
}
