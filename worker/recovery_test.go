package worker

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestARecoveryEndsThePausesThatBeganBefore(t *testing.T) {
	var r recovery
	before := r.next()
	r.happened() // also between a try and its pause
	select {
	case <-before:
	default:
		t.Error("a pause does not end with the recovery")
	}
	select {
	case <-r.next():
		t.Error("a recovery of before ends a pause")
	default:
	}
}

// What a command's earlier runs failed says nothing of this one.
func TestHealthTestsOfAnEarlierRunDoNotCount(t *testing.T) {
	v, a := &service{s: &sandbox{w: &worker{}}}, time.Now()
	v.ofRun(a)
	v.failures = 2
	if v.ofRun(a); v.failures != 2 {
		t.Error("failures of this run are forgotten")
	}
	if v.ofRun(a.Add(time.Second)); v.failures != 0 {
		t.Error("failures of the run before count")
	}
}

func TestAnExecThatComesAfterTheStopIsCancelled(t *testing.T) {
	stopping := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxStopping, "stopping")
	if r, err := notStarted("x", stopping); err != nil || !r.Cancelled || r.Failed {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := notStarted("x", protocol.Errorf(protocol.Unavailable, "", "gone")); err == nil {
		t.Error("what passes is an end")
	}
	if r, err := notStarted("x", protocol.Errorf(protocol.NotFound, protocol.ReasonStartFailed, "no such file")); err != nil || !r.Failed {
		t.Errorf("%+v, %v", r, err)
	}
}
