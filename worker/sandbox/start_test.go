package sandbox

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// An operator may restart an engine as often as necessary. The worker gives up only a container that always ends soon
// after its start.
func TestOnlyRevivalsInQuickSuccessionCount(t *testing.T) {
	const window = 5 * time.Minute
	const guard = 30 * time.Second
	up := docker.Container{StartedAt: time.Now().Add(-guard), FinishedAt: time.Now()}
	down := docker.Container{StartedAt: up.StartedAt, FinishedAt: up.FinishedAt.Add(-time.Second)}
	var often, soon revivals
	now := time.Now()
	for n := range 3 * maxRevivals {
		now = now.Add(window + time.Second)
		if !often.another(down, now, window, guard) {
			t.Fatalf("revival %d, long after the last one, is refused", n+1)
		}
		if !soon.another(up, up.FinishedAt, window, guard) {
			t.Fatalf("revival %d of a container that ran for the guard time is refused", n+1)
		}
	}
	var loop revivals
	for n := 1; n <= maxRevivals+1; n++ {
		now = now.Add(window - time.Second)
		if got := loop.another(down, now, window, guard); got != (n <= maxRevivals) {
			t.Errorf("revival %d of a container that ends soon after each start is allowed: %t", n, got)
		}
	}
	loop.undo()
	loop.undo()
	if !loop.another(down, now, window, guard) {
		t.Error("a revival that was undone counts")
	}
}

// The engine also sets OOMKilled if a process in the container ran out of memory before the container ended for another
// reason.
func TestAContainerThatRanOutOfMemoryIsRecognizedByItsExitCode(t *testing.T) {
	for _, is := range []struct {
		c      docker.Container
		reason string
	}{
		{docker.Container{OOMKilled: true, ExitCode: decide.KilledExit}, protocol.ReasonOOMKilled},
		{docker.Container{OOMKilled: true, ExitCode: 1}, protocol.ReasonContainerExited},
		{docker.Container{ExitCode: decide.KilledExit}, protocol.ReasonContainerExited},
	} {
		if why := exitError(&protocol.Sandbox{}, is.c); why.Reason != is.reason {
			t.Errorf("%+v: error %v, want reason %s", is.c, why, is.reason)
		}
	}
}
