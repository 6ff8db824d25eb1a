package integration

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
)

// TestAFinishedExecIsNotStartedAgain delays the worker each time before it lists the execs to start. During each delay
// many execs end, and the supervisor forgets them.
func TestAFinishedExecIsNotStartedAgain(t *testing.T) {
	t.Parallel()
	const parallel, each = 16, 25
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{SlowAt: "before-execs"})
	s := f.Create("once")
	ctx := f.Context(90 * time.Second)
	var running sync.WaitGroup
	for i := range parallel {
		running.Go(func() {
			for k := range each {
				name := fmt.Sprintf("%d-%d", i, k)
				if _, err := s.Exec(ctx,
					protocol.ExecSpec{Command: []string{"sh", "-c", "echo " + name + " >> /tmp/runs"}}); err != nil {
					t.Errorf("exec %s: %v", name, err)
					return
				}
			}
		})
	}
	running.Wait()
	runs, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"cat", "/tmp/runs"}})
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, name := range strings.Fields(string(runs.Stdout)) {
		times[name]++
	}
	for name, n := range times {
		if n != 1 {
			t.Errorf("exec %s ran %d times", name, n)
		}
	}
	if len(times) != parallel*each {
		t.Errorf("%d execs ran, want %d", len(times), parallel*each)
	}
	f.Judge()
}

// TestAnExecThatCannotBeStartedFailsInTime pauses the container and restarts the worker. The new worker then cannot
// connect to the supervisor, which would have to start the exec.
func TestAnExecThatCannotBeStartedFailsInTime(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	s := f.Create("paused")
	ctx := f.Context(time.Minute)
	containers := f.Objects("")
	name := ""
	for _, o := range containers {
		if fields := strings.Fields(o); strings.HasPrefix(o, "container") {
			name = fields[len(fields)-1]
		}
	}
	docker := func(verb string) {
		if out, err := exec.Command("docker", verb, name).CombinedOutput(); err != nil {
			t.Fatalf("docker %s %s: %v: %s", verb, name, err, out)
		}
	}
	docker("pause")
	w.Kill()
	w.Restart()
	began := time.Now()
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"touch", "/tmp/ran"},
		StartTimeout: protocol.Duration(3 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	why, err := s.Explain(ctx)
	if err != nil || !strings.Contains(why.Waiting, "not started") {
		t.Errorf("the exec waits for %+v, %v", why, err)
	}
	_, err = x.Wait(ctx)
	if protocol.CodeOf(err) != protocol.DeadlineExceeded ||
		protocol.AsError(err).Reason != protocol.ReasonStartTimeout {
		t.Errorf("the exec: %v, want deadline_exceeded, start_timeout", err)
	}
	if took := time.Since(began); took < 3*time.Second || took > 10*time.Second {
		t.Errorf("the exec failed after %s", took)
	}
	docker("unpause")
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"test", "!", "-e", "/tmp/ran"}})
	if err != nil {
		t.Fatal(err)
	}
	exitsWith(t, r, 0)
	f.Judge()
}
