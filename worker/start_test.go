package worker

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// An engine may be restarted as often as its operator likes; a container that ends each time soon after
// it was started is given up.
func TestOnlyRevivalsSoonAfterOneAnotherCount(t *testing.T) {
	const window = 5 * time.Minute
	const guard = 30 * time.Second
	up := docker.Container{StartedAt: time.Now().Add(-guard), FinishedAt: time.Now()}
	down := docker.Container{StartedAt: up.StartedAt, FinishedAt: up.FinishedAt.Add(-time.Second)}
	var often, soon revivals
	now := time.Now()
	for n := range 3 * maxRevivals {
		now = now.Add(window + time.Second)
		if !often.another(down, now, window, guard) {
			t.Fatalf("revival %d, a while after the one before, is refused", n+1)
		}
		if !soon.another(up, up.FinishedAt, window, guard) {
			t.Fatalf("revival %d of a container that stayed up is refused", n+1)
		}
	}
	var loop revivals
	for n := 1; n <= maxRevivals+1; n++ {
		now = now.Add(window - time.Second)
		if got := loop.another(down, now, window, guard); got != (n <= maxRevivals) {
			t.Errorf("revival %d of a loop is allowed: %t", n, got)
		}
	}
	loop.undo()
	loop.undo()
	if !loop.another(down, now, window, guard) {
		t.Error("one that was taken back counts")
	}
}

// That memory ran out in a container once does not say that it ended for that.
func TestAContainerThatEndedForWantOfMemoryIsToldByItsExitCode(t *testing.T) {
	for _, is := range []struct {
		c      docker.Container
		reason string
	}{
		{docker.Container{OOMKilled: true, ExitCode: decide.KilledExit}, protocol.ReasonOOMKilled},
		{docker.Container{OOMKilled: true, ExitCode: 1}, protocol.ReasonContainerExited},
		{docker.Container{ExitCode: decide.KilledExit}, protocol.ReasonContainerExited},
	} {
		if why := endedByItself(&protocol.Sandbox{}, is.c); why.Reason != is.reason {
			t.Errorf("%+v: %v", is.c, why)
		}
	}
}
